// The page of the service: search, a history, recommendations of one or two models, and the tree of IDs.
// Everything that comes from the service becomes text, never markup.

const PAGE_SIZE = 20;
const CHILDREN = 50;
const $ = (id) => document.getElementById(id);
const state = { models: [], history: [], words: "", offset: 0, prefix: [], childOffset: 0, turn: { search: 0, recommend: 0, branch: 0, similar: 0 } };

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "click") node.addEventListener("click", value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

const text = (content) => el("bdi", {}, String(content));
const count = (value, noun) => `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;

function say(sentence, wrong = false) {
  $("status").textContent = sentence;
  $("status").classList.toggle("wrong", wrong);
}

async function ask(path, body) {
  const headers = {};
  const key = sessionStorage.getItem("key");
  if (key) headers["X-API-Key"] = key;
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  if (response.status === 401) $("key-form").hidden = false;
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

// Runs a question and shows its answer, unless a later question of the same kind was asked meanwhile.
async function latest(kind, question, show) {
  const turn = ++state.turn[kind];
  try {
    const answer = await question();
    if (turn === state.turn[kind]) show(answer);
  } catch (error) {
    if (turn === state.turn[kind]) say(error.message, true);
  }
}

function about(item) {
  const values = Object.entries(item.fields)
    .filter(([name, value]) => name !== "title" && value !== null && value !== "" && !(Array.isArray(value) && !value.length))
    .map(([, value]) => (Array.isArray(value) ? value.join(" › ") : String(value)));
  return [item.title === String(item.item) ? null : String(item.item), ...values].filter(Boolean).join(" · ");
}

const what = (item, ...more) =>
  el("div", { class: "what" }, text(item.title), el("small", {}, text(about(item))), ...more);

function path(codes, model, shared = 0) {
  if (!codes) return null;
  return el("span", { class: "path", role: "group", "aria-label": `ID ${codes.join("-")}` }, codes.map((code, level) =>
    el("button", {
      type: "button",
      class: level < shared ? "shared" : null,
      "aria-label": `Browse ${codes.slice(0, level + 1).join("-")}${level < shared ? ", shared with the history" : ""}`,
      click: () => { $("model").value = model; browse(codes.slice(0, level + 1), true); },
    }, String(code))));
}

const adder = (item) =>
  el("button", { type: "button", "aria-label": `Add ${item.title} to the history`, click: () => add(item) }, "Add");

const likeIt = (item, model) =>
  el("button", { type: "button", "aria-label": `Items similar to ${item.title}`, click: () => similar(item, model) }, "Similar");

// Catalogue

function search(more = false) {
  state.offset = more ? state.offset + PAGE_SIZE : 0;
  const query = new URLSearchParams({ search: state.words, limit: PAGE_SIZE, offset: state.offset });
  latest("search", () => ask(`/items?${query}`), (answer) => {
    const entries = answer.items.map((item) => el("li", {}, what(item), adder(item)));
    if (more) $("results").append(...entries);
    else $("results").replaceChildren(...entries);
    $("found").textContent = `${count(answer.total, "item")}${state.words ? " found" : ""}, the most popular first`;
    $("more").hidden = state.offset + PAGE_SIZE >= answer.total;
  });
}

// History

function add(item) {
  state.history.push(item);
  say(`Added ${item.title}; the history has ${count(state.history.length, "item")}.`);
  showHistory();
}

function remove(index) {
  const [item] = state.history.splice(index, 1);
  say(`Removed ${item.title}.`);
  showHistory();
  const buttons = $("history").querySelectorAll("button.remove");
  (buttons[Math.min(index, buttons.length - 1)] ?? $("search")).focus();
}

function showHistory() {
  $("no-history").hidden = state.history.length > 0;
  $("history").replaceChildren(...state.history.map((item, index) => el("li", {}, what(item), likeIt(item, state.models[0].name),
    el("button", { type: "button", class: "remove", "aria-label": `Remove ${item.title} from the history`, click: () => remove(index) }, "Remove"))));
  recommend();
}

// Recommendations

function sharedLevels(codes, histories) {
  const level = (other) => { const place = codes.findIndex((code, index) => code !== other[index]); return place < 0 ? codes.length : place; };
  return codes ? Math.max(0, ...histories.filter(Boolean).map(level)) : 0;
}

async function recommendBy(model) {
  const request = { histories: [state.history.map((item) => item.item)], k: Math.min(Math.max(Number($("count").value) || 10, 1), state.maxK), exclude_seen: $("exclude-seen").checked, model: model.name, details: true, why: true };
  const conditions = $("where").value.split(";").map((condition) => condition.trim()).filter(Boolean);
  if (conditions.length) request.where = conditions;
  const answer = await ask("/recommend", request);
  const codes = await Promise.all(state.history.map((item) => codesOf(item, model.name)));
  return { model, answer, codes };
}

// The IDs of the history's items in another model than the first, which the search asked.
async function codesOf(item, model) {
  if (model === state.models[0].name) return item.id;
  item.others ??= {};
  try {
    item.others[model] ??= (await ask(`/items/${encodeURIComponent(item.item)}?${new URLSearchParams({ model })}`)).id;
  } catch { // the other model may not have the item
    item.others[model] = null;
  }
  return item.others[model];
}

// Why an item is recommended, folded: the nearest items of the history, and what each score adds.
function reasons(why) {
  const title = (id) => state.history.find((item) => item.item === id)?.title ?? String(id);
  const near = why.nearest.map(({ item, similarity, shared_prefix: shared }) => el("li", {}, text(title(item)),
    [similarity === null ? null : ` similarity ${similarity.toFixed(2)}`, shared ? ` ${count(shared, "shared code")}` : null].filter(Boolean).join(",")));
  const parts = Object.entries(why.contributions).map(([name, value]) => `${name} ${value.toFixed(2)}`).join(", ");
  if (!near.length && !parts) return null;
  return el("details", {}, el("summary", {}, "Why"), el("ul", { class: "reasons" }, near), parts ? el("small", {}, `Score: ${parts}`) : null);
}

function recommend() {
  latest("recommend", () => Promise.all(state.models.map(recommendBy)), (answers) => {
    const sets = answers.map(({ answer }) => new Set(answer.results[0].items.map((found) => found.item)));
    $("models").replaceChildren(...answers.map(({ model, answer, codes }, place) => {
      const [result] = answer.results;
      const rows = result.items.map((found) => {
        const both = sets.length > 1 && sets.every((set) => set.has(found.item));
        return el("li", {}, what(found.details, el("small", {}, path(found.id, model.name, sharedLevels(found.id, codes)),
          ` score ${found.score.toFixed(2)}`, both ? el("span", { class: "both" }, " in both") : null), reasons(found.why)),
          likeIt(found.details, model.name), adder(found.details));
      });
      const title = state.models.length > 1 ? el("h3", {}, text(model.name)) : null;
      const skipped = result.skipped ? el("p", { class: "muted" }, `${count(result.skipped, "item")} of the history unknown to this model`) : null;
      return el("div", { "data-model": place }, title, skipped, el("ol", { class: "items" }, rows));
    }));
  });
}

// Similar items

function similar(item, model) {
  const query = new URLSearchParams({ k: 10, model });
  latest("similar", () => ask(`/similar/${encodeURIComponent(item.item)}?${query}`), (answer) => {
    $("similar-about").replaceChildren("The nearest items to ", text(item.title), ` in the vectors of ${model}`);
    $("similar-items").replaceChildren(...answer.similar.map((found) => el("li", {},
      what(found.item, el("small", {}, path(found.item.id, model, found.shared ?? 0), ` cosine ${found.cosine.toFixed(2)}`)), adder(found.item))));
    $("similar").hidden = false;
    $("similar").focus({ preventScroll: true });
    $("similar").scrollIntoView({ block: "start" });
  });
}

// The tree of IDs

function browse(prefix, focus = false, more = false) {
  state.prefix = prefix;
  state.childOffset = more ? state.childOffset + CHILDREN : 0;
  const model = $("model").value;
  const query = new URLSearchParams({ model, limit: CHILDREN, offset: state.childOffset });
  latest("branch", () => ask(`/ids${prefix.map((code) => `/${code}`).join("")}?${query}`), (branch) => {
    const crumbs = [[], ...prefix.map((_, level) => prefix.slice(0, level + 1))].map((place, level) => el("li", {},
      el("button", { type: "button", "aria-current": level === prefix.length && "true", click: () => browse(place) }, level ? String(place.at(-1)) : "All")));
    $("crumbs").replaceChildren(...crumbs);
    const whole = prefix.length === branch.levels;
    $("branch-about").textContent = whole ? `${count(branch.total, "item")} with this ID` : `${count(branch.total, "item")}, ${count(branch.n_children, "code")} at level ${prefix.length + 1} of ${branch.levels}`;
    const rows = whole
      ? branch.items.map((item) => el("li", {}, what(item), adder(item)))
      : branch.children.map((child) => el("li", {},
        path([...prefix, child.code], model).lastChild,
        what(child.example, child.total > 1 ? el("small", {}, `and ${count(child.total - 1, "more item")}`) : null), adder(child.example)));
    if (more) $("children").append(...rows);
    else $("children").replaceChildren(...rows);
    $("more-children").hidden = state.childOffset + CHILDREN >= (whole ? branch.total : branch.n_children);
    if (focus) { $("branch").focus({ preventScroll: true }); $("branch").scrollIntoView({ block: "start" }); }
  });
}

async function start() {
  try {
    const version = await ask("/version");
    $("key-form").hidden = true;
    state.models = version.models;
    state.maxK = version.limits.max_k;
    $("count").max = state.maxK;
    $("about").textContent = version.models.map((model) => `${model.name}: ${model.kind}, ${count(model.items, "item")}, version ${model.version}`).join(" | ");
    $("where").placeholder = version.models[0].fields.length ? `${version.models[0].fields[0]}=…` : "";
    const withIds = version.models.filter((model) => model.levels);
    $("model").replaceChildren(...withIds.map((model) => el("option", { value: model.name }, model.name)));
    $("model-choice").hidden = withIds.length < 2;
    $("branch").hidden = !withIds.length;
    say("");
    search();
    showHistory();
    if (withIds.length) browse([]);
  } catch (error) {
    say(error.message, true);
  }
}

let typing;
$("search").addEventListener("input", (event) => {
  clearTimeout(typing);
  state.words = event.target.value.trim();
  typing = setTimeout(search, 150);
});
$("more").addEventListener("click", () => search(true));
$("more-children").addEventListener("click", () => browse(state.prefix, false, true));
$("model").addEventListener("change", () => browse([]));
$("count").addEventListener("change", recommend);
$("exclude-seen").addEventListener("change", recommend);
$("where").addEventListener("change", () => { say(""); recommend(); });
$("clear").addEventListener("click", () => { state.history = []; say("Cleared the history."); showHistory(); });
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value);
  start();
});
start();
