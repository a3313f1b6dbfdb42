// The sections of the report, top to bottom.

const content = JSON.parse(document.getElementById("content").textContent);
const { runs, items } = content;
const evaluated = runs.filter((run) => run.evaluation);
const RULE = "The whole catalogue is ranked for every test user. Seen items kept: items of the user's history stay in the ranking. " +
  "Seen items dropped: they are removed from it, and a target among them counts as missed. Small figures: 95% bootstrap intervals over users.";
const bare = (text) => text.replace(/^([+−]?)0\./, "$1.");
const interval = ([value, low, high], shown, between = "–") => [shown(value), el("small", {}, bare(shown(low)) + between, el("wbr"), bare(shown(high)))];
const PLAIN = [{ name: "", color: 0 }];
const four = (value) => value.toFixed(4);
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(4);

function results() {
  const missing = runs.filter((run) => run.missing).map((run) => el("p", { class: "notice" }, "No test results of ", data(run.name), ": ", data(run.missing)));
  const parts = [];
  if (evaluated.length) {
    const rows = Object.keys(RANKINGS).flatMap((ranking) => evaluated.map((run) => {
      const all = run.evaluation.all[ranking];
      const best = (metric) => Math.max(...evaluated.map((other) => other.evaluation.all[ranking][metric][0]));
      const cells = Object.keys(METRICS).map((metric) => {
        const cell = interval(all[metric], four);
        return evaluated.length > 1 && all[metric][0] === best(metric) ? [el("strong", {}, cell[0]), cell[1]] : cell;
      });
      return [evaluated.length > 1 ? [data(run.name), el("small", {}, RANKINGS[ranking])] : RANKINGS[ranking], ...cells];
    }));
    parts.push(table(`Test set, ${plural(evaluated[0].evaluation.all.users, "user")}`, ["", ...Object.values(METRICS)], rows), el("p", { class: "muted" }, RULE));
  }
  if (content.differences.length) {
    const rows = Object.keys(RANKINGS).flatMap((ranking) => content.differences.map((one) =>
      [[data(one.run), el("small", {}, RANKINGS[ranking])], ...Object.keys(METRICS).map((metric) => interval(one[ranking][metric], signed, " to "))]));
    parts.push(table(`Difference to ${content.differences[0].to}, paired bootstrap over users`, ["", ...Object.values(METRICS)], rows));
  }
  const known = runs.filter((run) => Object.keys(run.validation).length);
  if (known.length) {
    const rows = known.flatMap((run) => Object.entries(run.validation).map(([name, found]) =>
      [name === "model" ? data(run.name) : name === "cooccurrence" ? "co-occurrence" : name, four(found["recall@10"]), four(found["ndcg@10"])]));
    parts.push(table("Validation users, against simple recommenders, seen items kept", ["", "R@10", "N@10"], rows));
  }
  return section("results", "Results", missing, parts);
}

function dataSection() {
  const about = content.data;
  const lengths = about.history_lengths;
  const figures = [["users", about.users], ["items", about.items], ["interactions", about.interactions]];
  const steps = about.steps.map((step) => [step.step, count(step.users), count(step.items), count(step.interactions)]);
  const windows = `${count(about.windows.train)} train, ${count(about.windows.validation)} validation, ${count(about.windows.test)} test`;
  const fields = about.fields.map((field) => [data(field.name), field.kind, count(field.values), percent(field.missing)]);
  const histogram = (title, bins) => barChart(title, PLAIN, bins.map(([label, size]) => ({ label, bars: [{ value: size }] })), count);
  return section("data", "Data",
    el("dl", { class: "figures" }, figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, count(value)))),
      el("div", {}, el("dt", {}, "density"), el("dd", {}, percent(about.density, 3)))),
    el("p", {}, `${about.split === "time" ? "Split by time; the periods are below." : "Leave-one-out split: the last item of a user is the test target, the item before it the validation target."} Windows of at most ${about.max_length} items: ${windows}.`),
    el("p", {}, `History lengths: mean ${lengths.mean.toFixed(1)}, median ${lengths.median}, 95% at most ${lengths.q95.toFixed(0)}, longest ${lengths.max}; ${count(lengths.longer_than_window)} are longer than a window.`),
    el("div", { class: "grid" }, histogram("Users by length of history", about.lengths), histogram("Items by number of interactions in training", about.popularity)),
    el("div", { class: "grid" },
      table("Preprocessing", ["step", "users", "items", "interactions"], steps),
      fields.length ? table("Fields", ["field", "kind", "values", "missing"], fields) : el("p", { class: "muted" }, "The items have no fields.")),
    el("ul", { class: "remarks" }, about.remarks.map((line) => el("li", {}, data(line)))));
}

function training() {
  const { stages, charts } = content.training;
  const several = runs.length > 1;
  const rows = stages.map((stage) => [[data(several ? stage.run : stage.stage), several || stage.phase ? el("small", {}, [several ? stage.stage : "", stage.phase].filter(Boolean).join(", ")) : ""],
    stage.kind, stage.epochs ? count(stage.epochs) : "–", stage.best ? count(stage.best) : "–",
    stage.samples_per_second ? count(Math.round(stage.samples_per_second)) : "–", stage.finished ? time(stage.finished) : "–"]);
  return section("training", "Training",
    charts.length ? [el("p", { class: "muted" }, "Circles mark the epoch whose weights were kept. Validation metrics of different models may be of different samples of users."),
      el("div", { class: "grid" }, charts.map((chart) => lineChart(chart, several)))] : el("p", { class: "muted" }, "Nothing was trained by epochs."),
    rows.length ? table("Stages", [several ? "run" : "stage", "part", "epochs", "best epoch", "samples/s", "finished"], rows) : "",
    rows.length ? el("p", { class: "muted" }, "Finished: the time of the file in UTC.") : "");
}

const time = (iso) => iso.slice(0, 16).replace("T", " ");

function semanticIds() {
  const parts = runs.map((run) => {
    const title = runs.length > 1 ? el("h3", {}, data(run.name)) : "";
    if (!run.tree) return [title, el("p", { class: "muted" }, data(run.name), ` is a ${run.model} model, which ranks items without semantic IDs, so there is no ID quality and no tree.`)];
    const levels = [...Array(run.quality.levels).keys()].map((level) => `level ${level + 1}`);
    const quality = run.quality.rows.map(([text, values]) => [el("span", { class: text.startsWith(" ") ? "indented" : null }, text.trim()), ...values]);
    const depths = [...Array(run.tree.levels).keys()].map((depth) => depth + 1);
    const purity = run.tree.fields.map((field) => [data(field.name), ...depths.map((depth) => [percent(field.purity[depth][0], 0), el("small", {}, percent(field.purity[depth][1], 0))])]);
    const weights = run.weights ? Object.entries(run.weights).filter(([name]) => name !== "seen" && name !== "added") : [];
    return [title, el("p", {}, `${run.quality.text}.`), el("h4", {}, "Tree of IDs"), idTree(run.tree, items, run.name),
      el("div", { class: "grid" },
        table("Quality of the IDs", ["", ...levels], quality),
        el("div", {},
          purity.length ? [table("Purity: share of items with the most common value of their prefix", ["field", ...depths.map((depth) => plural(depth, "code"))], purity),
            el("p", { class: "muted" }, "Small: the same with shuffled items, as small groups are pure by chance.")] : "",
          weights.length ? [barChart("Weights of the scores that rank items", PLAIN, weights.map(([label, value]) => ({ label, bars: [{ value }] })), (value) => value.toFixed(3)),
            el("p", { class: "muted" }, `Fitted on validation users. Bias of items of the history: ${signed(run.weights.seen).slice(0, -1)}${"added" in run.weights ? `; of added items: ${signed(run.weights.added).slice(0, -1)}` : ""}.`)] : ""))];
  });
  return section("ids", "Semantic IDs", parts);
}

function slices() {
  if (!evaluated.length) return section("slices", "Groups of users", el("p", { class: "muted" }, "Evaluate a run to see its results by group."));
  const chosen = { metric: "recall@10", ranking: "kept" };
  const place = el("div");
  const names = [...new Set(evaluated.flatMap((run) => run.evaluation.slices.map((slice) => slice.name)))];
  const draw = () => {
    const groups = names.map((name) => {
      const found = evaluated.map((run) => run.evaluation.slices.find((slice) => slice.name === name));
      const bars = found.map((slice) => {
        if (!slice) return null;
        const [value, low, high] = slice[chosen.ranking][chosen.metric];
        return { value, low, high };
      });
      return { label: name, note: plural(found.find(Boolean).users, "user"), bars };
    });
    place.replaceChildren(barChart(`${METRICS[chosen.metric]}, ${RANKINGS[chosen.ranking]}`, evaluated.map((run) => ({ name: run.name, color: runs.indexOf(run) })), groups, four));
  };
  draw();
  return section("slices", "Groups of users",
    el("p", { class: "muted" }, "Test users by the length of their history and by the training count of their target: unseen in training, among the rarer items that have half of all interactions, or among the more popular ones. Lines are 95% intervals."),
    el("div", { class: "bar-of-choices" },
      choice("Metric", METRICS, chosen.metric, (value) => { chosen.metric = value; draw(); }),
      choice("Ranking", RANKINGS, chosen.ranking, (value) => { chosen.ranking = value; draw(); })),
    place);
}

// The codes of an ID; those that it shares with the beginning of the target's ID are highlighted.
function codes(id, target) {
  if (!id) return null;
  let shared = 0;
  while (target && shared < id.length && id[shared] === target[shared]) shared += 1;
  const label = `ID ${id.join("-")}` + (shared ? `, ${shared} shared` : "");
  const together = shared ? el("mark", {}, id.slice(0, shared).join("-")) : "";
  return el("code", { title: label }, together, (shared && shared < id.length ? "-" : "") + id.slice(shared).join("-"));
}

function entry(number, { ids, target, marks = [] }) {
  const [id, label] = items[number];
  return el("li", { class: marks.includes("next item") ? "target" : null }, el("span", { class: "name" }, data(label || id)), " ",
    marks.map((mark) => [el("span", { class: `badge ${mark === "next item" ? "good" : ""}` }, mark), " "]),
    codes(ids?.[number], ids?.[target]));
}

function examples() {
  const { users, chosen_by: chosenBy, runs: names } = content.examples;
  const withIds = names.find((name) => users.some((user) => user.ids[name]));
  const cards = users.map((user) => {
    const ids = user.ids[withIds];
    const history = el("div", {}, el("h4", {}, "History"), user.length > user.history.length ? el("p", { class: "muted" }, `the last ${user.history.length} of ${user.length} items`) : "",
      el("ul", { class: "items" }, user.history.map((item) => entry(item, { ids, target: user.target })), entry(user.target, { ids, target: user.target, marks: ["next item"] })));
    const lists = names.map((name) => {
      const found = user.recommended[name].indexOf(user.target);
      const list = user.recommended[name].map((item) => entry(item, { ids: user.ids[name], target: user.target,
        marks: [...(item === user.target ? ["next item"] : []), ...(user.seen.includes(item) ? ["in history"] : [])] }));
      return el("div", {}, el("h4", {}, data(names.length > 1 ? name : "Recommended")),
        el("p", { class: "muted" }, found < 0 ? "next item not in the list" : `next item at rank ${found + 1}`), el("ol", { class: "items" }, list));
    });
    return el("article", { class: "user" }, el("h3", {}, "User ", data(user.user)), el("div", { class: "lists" }, history, lists));
  });
  const drawn = chosenBy ? ["Drawn at random: up to four users whose next item ", data(chosenBy), " recommends and two whose next item it does not, so hits are more frequent here than in the results."] : ["Drawn at random from the test users."];
  const marked = withIds ? [" Codes that an ID shares with the beginning of the next item's ID are ", el("mark", {}, "highlighted"), names.length > 1 ? [". IDs in the history are those of ", data(withIds)] : "", "."] : "";
  const limited = names.length < runs.length ? ` Recommendations of the first ${names.length} runs are shown.` : "";
  return section("examples", "Example users", el("p", { class: "muted" }, drawn, marked, " Items of the history are kept in these rankings.", limited), cards);
}

function settings() {
  const versions = Object.entries(content.versions).map(([name, value]) => [name, el("span", {}, value)]);
  return section("settings", "Settings and versions",
    runs.map((run) => el("details", { class: "settings" }, el("summary", {}, "Settings of ", data(run.name), run.recipe ? [" (recipe ", data(run.recipe), ")"] : ""),
      run.settings ? el("pre", { tabindex: 0, dir: "ltr" }, run.settings) : el("p", { class: "muted" }, "recipe.toml is missing."))),
    el("div", { class: "grid" },
      table("Runs", ["run", "recipe", "folder"], runs.map((run) => [data(run.name), data(run.recipe ?? "–"), data(run.folder)])),
      table(`This report was written with, on ${content.platform}`, ["package", "version"], versions)),
    el("p", { class: "muted" }, "Fingerprint of the Dataset: ", el("code", { class: "long" }, content.data.fingerprint)));
}

const sections = [results(), dataSection(), training(), semanticIds(), slices(), examples(), settings()];
document.getElementById("head").append(
  el("p", { class: "muted" }, "resid report"),
  el("h1", {}, runs.length === 1 ? data(runs[0].name) : `${runs.length} runs`, el("small", {}, " on ", data(content.data.name))),
  el("p", { class: "muted" }, runs.map((run, index) => [index ? ", " : "", data(runs.length > 1 ? `${run.name}: ${run.model}` : run.model)]), ` · written ${time(content.written)} UTC`),
  el("nav", { class: "contents", "aria-label": "Sections" }, el("ul", {}, sections.map((part) => el("li", {}, el("a", { href: `#${part.id}` }, part.querySelector("h2").textContent))))));
document.getElementById("main").append(...sections);
document.body.append(tip);
