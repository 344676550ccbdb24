"""The bounded cache: what it keeps, what it lets go of, and that threads may share it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from laya.lru import LruCache


def test_what_was_used_longest_ago_goes_first() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_entries_count_by_their_weight() -> None:
    cache: LruCache[str, int] = LruCache(10)
    cache.put("a", 1, weight=6)
    cache.put("b", 2, weight=4)
    cache.put("c", 3, weight=1)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, 2, 3)


def test_an_entry_heavier_than_the_whole_cache_is_not_kept() -> None:
    cache: LruCache[str, int] = LruCache(10)
    cache.put("a", 1, weight=11)
    assert cache.get("a") is None


def test_an_entry_heavier_than_the_whole_cache_drives_out_no_other_but_its_own_old_one() -> None:
    cache: LruCache[str, int] = LruCache(10)
    cache.put("a", 1, weight=4)
    cache.put("b", 2, weight=4)
    cache.put("a", 3, weight=11)
    assert (cache.get("a"), cache.get("b")) == (None, 2)


def test_a_value_put_again_replaces_the_old_one_and_its_weight() -> None:
    cache: LruCache[str, int] = LruCache(10)
    cache.put("a", 1, weight=9)
    cache.put("a", 2, weight=1)
    cache.put("b", 3, weight=9)
    assert (cache.get("a"), cache.get("b")) == (2, 3)


def test_threads_that_share_it_never_grow_it_past_its_capacity() -> None:
    cache: LruCache[int, int] = LruCache(50)

    def use(start: int) -> int:
        for step in range(2000):
            key = (start * 7 + step) % 101
            if cache.get(key) not in (None, key):
                return -1
            cache.put(key, key)
        return len(cache)

    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(use, range(8)))
    assert all(0 < size <= 50 for size in sizes)
