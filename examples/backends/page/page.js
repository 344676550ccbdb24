// The page of the example backend: asks POST /predictions, and looks at GET /workers every two seconds.

const PRESET = {
  team: { type: "choice", instructions: "Which team should answer this customer?", criteria: {
    billing: "a charge, invoice, payment method or tax on the bill",
    delivery: "a parcel that is late, lost, damaged or at the wrong address",
    technical: "the app, website or device crashes, shows an error or does not work",
    account: "signing in, password, verification code, e-mail address or personal data",
    returns: "sending an item back, exchanging it, wrong size or colour",
  } },
  urgency: { type: "score", instructions: "How urgent is this message?", criteria: [
    "a general question, there is no hurry",
    "a problem that should be solved this week",
    "a serious problem, the customer is waiting and cannot go on",
    "an emergency: money, data or safety is being lost right now",
  ] },
  refund: { type: "noul", instructions: "The customer wants money back.", criteria: {
    true: "the customer asks for a refund of money that was paid",
    false: "the customer asks for something else, not for a refund",
  } },
};
const NEW = {
  choice: { type: "choice", instructions: "Which one fits?", criteria: { first: "what it stands for", second: null } },
  score: { type: "score", instructions: "How much?", criteria: ["not at all", "somewhat", "very"] },
  noul: { type: "noul", instructions: "It is so.", criteria: {} },
};
const WORDS = { choice: "choice", score: "score", noul: "yes / no" };
const SAMPLES = {
  English: "My parcel was due last Monday and the courier has no trace of it. I want my money back.",
  Deutsch: "Seit dem letzten Update stürzt die App sofort ab. Ich kann seit drei Tagen nicht arbeiten!",
  Español: "Me han cobrado dos veces la misma factura, ¿pueden devolverme el dinero?",
  日本語: "パスワードを忘れてしまい、ログインできません。",
};

const STILL = matchMedia("(prefers-reduced-motion: reduce)");

const $ = (selector, root = document) => root.querySelector(selector);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// --- questions ---

// One option a line: "label: what it stands for"; a score has one level a line, lowest first.
function linesOf({ type, criteria }) {
  if (type === "score") return criteria.join("\n");
  return Object.entries(criteria ?? {}).map(([label, text]) => (text ? `${label}: ${text}` : label)).join("\n");
}

function criteriaOf(type, text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (type === "score") return lines;
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf(":");
    return at < 0 ? [line, null] : [line.slice(0, at).trim(), line.slice(at + 1).trim() || null];
  }));
}

function addQuestion(id, question) {
  const made = $("#question").content.cloneNode(true).firstElementChild;
  made.dataset.type = question.type;
  $(".id", made).value = id;
  $(".type", made).textContent = WORDS[question.type];
  $(".instructions", made).value = question.instructions;
  $(".criteria", made).value = linesOf(question);
  $(".remove", made).addEventListener("click", () => {
    const next = made.nextElementSibling ?? made.previousElementSibling;
    made.remove();
    (next ? $(".id", next) : $("[data-add]")).focus();
  });
  $("#questions").append(made);
  return made;
}

function questions() {
  return Object.fromEntries([...document.querySelectorAll(".question")].map((card) => {
    const { type } = card.dataset;
    const criteria = criteriaOf(type, $(".criteria", card).value);
    const question = { type, instructions: $(".instructions", card).value };
    if (type === "score" || Object.keys(criteria).length) question.criteria = criteria;
    return [$(".id", card).value.trim(), question];
  }));
}

// --- answers ---

function distribution(answer) {
  if (answer.type === "choice") return Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  if (answer.type === "score") return Object.entries(answer.probabilities).map(([level, p]) => [answer.legend[level], p]);
  return [["yes", answer.noul], ["no", 1 - answer.noul]];
}

function inAWord(answer) {
  if (answer.type === "choice") return answer.choice;
  if (answer.type === "score") return `${answer.score.toFixed(1)} of ${Object.keys(answer.legend).length - 1}`;
  return answer.noul >= 0.5 ? "yes" : "no";
}

const percent = (share) => `${Math.round(share * 100)} %`;

function answerCard(id, answer) {
  const options = distribution(answer);
  const best = Math.max(...options.map(([, share]) => share));
  const abstained = answer.abstention === "abstained";
  const sure = element("span", { className: abstained ? "sure low" : "sure" },
    `${percent(answer.answer_confidence)} sure${abstained ? ", below your limit" : ""}`);
  const card = element("article", {}, element("h3", {}, element("span", {}, `${id} `, element("b", {}, inAWord(answer))), sure));
  for (const [name, share] of options) {
    const fill = element("div", { className: "fill" });
    requestAnimationFrame(() => requestAnimationFrame(() => { fill.style.width = `${share * 100}%`; }));
    card.append(element("div", { className: share === best ? "option best" : "option" },
      element("span", { className: "name", title: name }, name),
      element("div", { className: "track", role: "img", ariaLabel: percent(share) }, fill),
      element("span", { className: "share" }, percent(share))));
  }
  return card;
}

function factsCard(body, milliseconds) {
  const { routing, usage } = body.result;
  const served = body.served ?? {};
  const list = element("dl", { className: "facts" });
  const add = (name, ...values) => list.append(element("dt", {}, name), element("dd", {}, ...values));
  add("checkpoint", routing.model, served.hits ? element("span", { className: "badge", style: "margin-left:.5rem" }, "from the cache") : "");
  add("because", routing.reason);
  add("took", `${milliseconds.toFixed(0)} ms here` + (served.seconds === undefined ? "" : `, ${(served.seconds * 1000).toFixed(served.seconds < 0.01 ? 1 : 0)} ms of it in the worker`));
  if (served.worker) add("worker", served.worker);
  add("tokens", `${usage.input_tokens ?? 0}${usage.truncated ? ", the text was cut" : ""}`);
  return element("article", { id: "facts" }, list);
}

function errorCard(title, text) {
  return element("article", { className: "error", role: "alert" },
    element("h3", {}, element("b", {}, title)), element("p", { style: "margin:0" }, text));
}

async function ask(event) {
  event.preventDefault();
  const send = $("#send");
  if (send.disabled) return;
  send.disabled = true;
  send.textContent = "Asking …";
  const options = { cache: $("#cache").checked };
  if ($("#model").value) options.model = $("#model").value;
  if ($("#min_confidence").value !== "") options.min_confidence = Number($("#min_confidence").value);
  const started = performance.now();
  try {
    const response = await fetch("predictions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ state: $("#state").value, questions: questions(), options }),
    });
    const body = await response.json();
    const took = performance.now() - started;
    if (response.ok) {
      const cards = Object.entries(body.result.answers).map(([id, answer]) => answerCard(id, answer));
      $("#result").replaceChildren(...cards, factsCard(body, took));
      if ($("#result").getBoundingClientRect().top > innerHeight) $("#result").scrollIntoView({ behavior: STILL.matches ? "instant" : "smooth" });
    } else {
      const again = response.headers.get("retry-after");
      $("#result").replaceChildren(errorCard(`${response.status} ${body.error?.type ?? "error"}`,
        (body.error?.message ?? JSON.stringify(body)) + (again ? ` Try again in ${again} s.` : "")));
    }
  } catch (error) {
    $("#result").replaceChildren(errorCard("The backend does not answer", String(error)));
  } finally {
    send.disabled = false;
    send.textContent = "Ask";
  }
}

// --- workers ---

async function look() {
  const strip = $("#workers");
  try {
    const response = await fetch("workers");
    const { workers, checkpoints, error } = await response.json();
    const model = $("#model");
    for (const name of checkpoints ?? []) {
      if (![...model.options].some((option) => option.value === name)) model.append(element("option", { value: name }, name));
    }
    if (error) throw new Error(error);
    const items = workers.map(({ name, holds, loading, rate }) => {
      const held = [...holds, ...loading.map((each) => `${each} …`)].join(", ") || "holds nothing yet";
      return element("li", {}, `${name}: ${held}${rate >= 0.05 ? `, ${rate.toFixed(1)} a second` : ""}`);
    });
    strip.replaceChildren(...(items.length ? items : [element("li", { className: "bad" }, "no worker answers: start one with laya-workers up")]));
  } catch (error) {
    strip.replaceChildren(element("li", { className: "bad" }, `workers unknown: ${error.message}`));
  } finally {
    setTimeout(look, document.hidden ? 10000 : 2000);
  }
}

// --- start ---

for (const [id, question] of Object.entries(PRESET)) addQuestion(id, question);
for (const [name, text] of Object.entries(SAMPLES)) {
  $("#samples").append(element("button", { type: "button", className: "chip", onclick: () => { $("#state").value = text; $("#state").focus(); } }, name));
}
for (const button of document.querySelectorAll("[data-add]")) {
  button.addEventListener("click", () => {
    const { add } = button.dataset;
    $(".id", addQuestion(`${add}${document.querySelectorAll(".question").length + 1}`, NEW[add])).select();
  });
}
$("#ask").addEventListener("submit", ask);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("#ask").requestSubmit();
});
look();
