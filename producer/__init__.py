"""What a web backend imports: two tasks, a client that waits for their answers, and the errors."""
