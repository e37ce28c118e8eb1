/** Clients, servers and the configuration, with the actions. */

import { act, get, getIfKnown, messageOf, problem } from "./api.js";
import { fill, h, instanceCell, instanceHead, note, section, table, terms } from "./dom.js";
import {
  bytes,
  certificateName,
  counted,
  dateAndTime,
  duration,
  integer,
  moment,
  number,
  span,
  words,
} from "./format.js";
import { shapeAddress, shapeLink } from "./view-events.js";

/** @typedef {import("./types.js").Page} Page */

/** Maximum number of listed clients. */
const MAX_CLIENTS = 1_000;

/** @param {Page} page */
export function clientsView(page) {
  const filter = h("input", {
    type: "search",
    id: "filter",
    placeholder: "Filter: application, user or address",
    "aria-label": "Filter",
    value: page.state.q,
  });
  const count = h("p", { class: "hint", role: "status" });
  const body = h("div", {});
  /** @type {import("./types.js").Clients | null} */
  let reply = null;
  const show = () => {
    if (!reply) return;
    const wanted = filter.value.toLowerCase();
    const rows = reply.clients.filter((of) =>
      `${of.application ?? ""} ${of.user ?? ""} ${of.peer}`.toLowerCase().includes(wanted),
    );
    const known = reply.clients.length;
    count.textContent = `${counted(reply.count, "client")}${known < reply.count ? `, the first ${integer(known)} listed` : ""}${rows.length < known ? `, ${integer(rows.length)} match` : ""}`;
    const groups = grouped(rows);
    fill(
      body,
      h(
        "div",
        { class: "columns" },
        section(
          "By application",
          known < reply.count && h("p", { class: "hint" }, "Counts only the listed clients."),
          table("Clients by application", ["Application", "User", "#Clients"], groups),
        ),
        section(
          "Connections",
          table(
            "Clients",
            ["Application", "User", "Address", "Connected", ...instanceHead(rows)],
            rows.map((of) => [
              of.application ?? "–",
              of.user ?? "–",
              of.peer,
              moment(of.connected_at),
              ...instanceCell(of),
            ]),
          ),
        ),
      ),
    );
  };
  filter.addEventListener("input", () => {
    page.keep({ q: filter.value });
    show();
  });
  fill(page.main, h("div", { class: "controls" }, filter, count), body);
  page.poll(
    (signal) =>
      /** @type {Promise<import("./types.js").Clients>} */ (
        get(`clients?limit=${MAX_CLIENTS}`, signal)
      ),
    (clients) => {
      reply = clients;
      show();
    },
    { seconds: 5, into: body },
  );
}

/** @param {import("./types.js").ClientRow[]} rows */
function grouped(rows) {
  /** @type {Map<string, [string, string, number]>} */
  const groups = new Map();
  for (const { application, user } of rows) {
    const key = JSON.stringify([application, user]);
    const group = groups.get(key) ?? [application ?? "–", user ?? "–", 0];
    group[2] += 1;
    groups.set(key, group);
  }
  return [...groups.values()]
    .sort((one, other) => other[2] - one[2])
    .slice(0, 100)
    .map(([application, user, count]) => [application, user, integer(count)]);
}

/** @param {Page} page */
export function serversView(page) {
  const topology = h("div", {});
  const pools = h("div", {});
  const holders = h("div", {});
  fill(
    page.main,
    section("Topology", topology),
    section("Pools", pools),
    section("Shapes that hold connections", holders),
  );
  loadHolders(page, holders);
  page.poll(
    async (signal) =>
      Promise.all([
        /** @type {Promise<import("./types.js").Topology>} */ (get("topology", signal)),
        /** @type {Promise<{servers: import("./types.js").ServerRow[]}>} */ (
          get("servers", signal)
        ),
      ]),
    ([deployment, { servers }]) => {
      const rows = deployment.servers.map((of) => {
        const figures = servers.find(
          (one) => one.address === of.address && one.instance === of.instance,
        );
        return [
          of.address,
          of.suspect ? `${of.type}, suspect` : of.type,
          of.round_trip_ms === null ? "–" : duration(of.round_trip_ms),
          Object.entries(of.tags)
            .map(([tag, value]) => `${tag}=${value}`)
            .join(" ") || "–",
          figures ? integer(figures.count) : "0",
          figures ? integer(figures.errors) : "0",
          figures?.answer_ms ? duration(figures.answer_ms.p50) : "–",
          figures?.answer_ms ? duration(figures.answer_ms.p99) : "–",
          ...instanceCell(of),
        ];
      });
      fill(
        topology,
        h(
          "p",
          { class: "hint" },
          `${deployment.type}${deployment.set_name ? ` ${deployment.set_name}` : ""}. Figures cover the time since the start; the reply times end when the reply begins.`,
        ),
        table(
          "Servers",
          [
            "Server",
            "Type",
            "#Round trip",
            "Tags",
            "#Operations",
            "#Errors",
            "#Reply p50",
            "#Reply p99",
            ...instanceHead(deployment.servers),
          ],
          rows,
        ),
      );
    },
    { seconds: 5, into: topology },
  );
  page.poll(
    (signal) => /** @type {Promise<{pools: import("./types.js").Pool[]}>} */ (get("pools", signal)),
    (reply) => {
      fill(pools, ...reply.pools.map(pool), reply.pools.length === 0 && note("There is no pool."));
    },
    { seconds: 2, into: pools },
  );
}

/** Maximum number of listed shapes that hold connections. */
const HOLDERS = 8;

/**
 * The time in milliseconds for which the operations of a shape held server connections. An
 * operation holds a connection from the checkout to the end of the server's reply. The phases of
 * `getMore`s are not known, so their whole time is counted, which is an upper bound.
 * @param {import("./types.js").Shape} shape
 */
function heldTime({ phases_ms: of, more }) {
  return of.forward + of.server + of.receive + more.total_time_ms;
}

/**
 * Lists the shapes whose operations hold the most server connections.
 * @param {Page} page
 * @param {HTMLElement} into
 */
function loadHolders(page, into) {
  page.poll(
    (signal) =>
      /** @type {Promise<import("./types.js").Shapes | null>} */ (
        getIfKnown("shapes?since=5m&limit=200", signal)
      ),
    (reply) => {
      const seconds = reply?.since_seconds;
      if (!reply || !seconds) {
        fill(into, note("There is no history of the last five minutes."));
        return;
      }
      const rows = reply.shapes
        .map((of) => ({ of, held: heldTime(of), operations: of.count + of.more.count }))
        .sort((one, other) => other.held - one.held)
        .slice(0, HOLDERS)
        .map(({ of, held, operations }) => [
          shapeLink(shapeAddress(page), { ...of, text: of.shape }),
          number(held / 1e3 / seconds),
          duration(held / (operations || 1)),
          number(operations / seconds),
        ]);
      fill(
        into,
        h("p", { class: "hint" }, "On average over the last five minutes, with getMores."),
        rows.length > 0
          ? table(
              "Shapes that hold connections",
              ["Shape", "#Connections", "#Each for", "#Per second"],
              rows,
            )
          : note("No operations yet."),
      );
    },
    { seconds: 10, into },
  );
}

/** @param {import("./types.js").Pool} of */
export function pool(of) {
  const { concurrency: limit } = of;
  const rows = of.users.map((user) => [
    user.name || "no user",
    user.source || "–",
    integer(user.in_use),
    integer(user.available),
    integer(user.pending),
    integer(user.wait_queue),
  ]);
  return h(
    "article",
    { class: "event" },
    h("h3", {}, of.server, h("small", {}, of.state), of.instance && h("small", {}, of.instance)),
    terms(
      [
        ["In use", integer(of.in_use)],
        ["Available", integer(of.available)],
        ["Pending", integer(of.pending)],
        ["Waiting", integer(of.wait_queue)],
        ["Concurrency limit", limit.limit === null ? "none" : integer(limit.limit)],
        ["In progress", integer(limit.in_progress)],
        ["Mode", limit.reason ? `${limit.mode}: ${words(limit.reason)}` : limit.mode],
      ],
      "figures",
    ),
    table(
      "Connections by user",
      ["User", "Source", "#In use", "#Available", "#Pending", "#Waiting"],
      rows,
    ),
  );
}

/** @param {Page} page */
export function configurationView(page) {
  const status = h("div", {});
  const values = h("div", {});
  const filter = h("input", {
    type: "search",
    id: "filter",
    placeholder: "Filter: key or value",
    "aria-label": "Filter",
    value: page.state.q,
  });
  const canAct = page.session?.role === "act";
  const reload = h(
    "button",
    { type: "button", disabled: !canAct, onclick: () => confirmReload(page) },
    "Reload the configuration …",
  );
  const drain = h(
    "button",
    { type: "button", disabled: !canAct, class: "danger", onclick: () => confirmDrain(page) },
    "Drain …",
  );
  const actions = h(
    "div",
    { class: "controls" },
    reload,
    drain,
    !canAct && h("p", { class: "hint" }, "Your token may only read."),
    page.state.instances === "all" &&
      h("p", { class: "hint" }, "Actions apply only to this instance, not to the others."),
  );
  fill(
    page.main,
    section(page.state.instances === "all" ? "All instances" : "This Seawall", status),
    section("Actions", actions),
    section("Configuration", h("div", { class: "controls" }, filter), values),
  );
  page.poll(
    (signal) => /** @type {Promise<import("./types.js").Status>} */ (get("status", signal)),
    (of) => {
      // A drain cannot be undone, and Seawall reloads nothing during a drain. A merged reply may
      // report the drain of another instance. Actions apply only to this instance, so they stay
      // possible.
      const isDraining = of.draining && !of.instances;
      [reload, drain].forEach((button) => (button.disabled = !canAct || isDraining));
      fill(
        status,
        terms(
          [
            ["Version", of.version],
            // A merged reply has the longest uptime of all instances.
            [
              page.state.instances === "all" ? "Running for at most" : "Running for",
              span(of.uptime_seconds),
            ],
            ["Mode", of.mode],
            ["Deployment", of.deployment],
            ["Credentials", of.credentials],
            ["History", of.history.on ? bytes(of.history.bytes) : "off"],
            ["Operations", integer(of.operations)],
            ["Draining", of.draining ? "yes" : "no"],
            ...of.certificates.map(
              (one) =>
                /** @type {[string, string]} */ ([
                  `TLS: ${certificateName(one)}`,
                  `until ${dateAndTime(one.not_after)}`,
                ]),
            ),
          ],
          "figures",
        ),
      );
    },
    { seconds: 5, into: status },
  );
  /** @type {import("./types.js").Configuration | null} */
  let reply = null;
  const show = () => {
    const wanted = filter.value.toLowerCase();
    const rows = (reply?.values ?? []).filter((of) =>
      `${of.key} ${valueText(of)} ${of.origin} ${of.instance ?? ""}`.toLowerCase().includes(wanted),
    );
    fill(
      values,
      table(
        "Configuration",
        ["Key", "Value", "Source", "After a restart", ...instanceHead(rows)],
        rows.map((of) => [
          h("code", {}, of.key),
          valueText(of),
          of.origin,
          of.pending === "" ? "(absent)" : (of.pending ?? ""),
          ...instanceCell(of),
        ]),
      ),
    );
  };
  filter.addEventListener("input", () => {
    page.keep({ q: filter.value });
    show();
  });
  page.poll(
    (signal) => /** @type {Promise<import("./types.js").Configuration>} */ (get("config", signal)),
    (configuration) => {
      reply = configuration;
      show();
    },
    { seconds: 30, into: values },
  );
}

/**
 * The configured value of a key, and the value in effect if it differs.
 * @param {import("./types.js").Configuration["values"][number]} of
 */
function valueText({ value, in_effect: other }) {
  return other === null ? value : `${value} (in effect: ${other})`;
}

/**
 * Asks the user to type a word before an action.
 * @param {object} action
 * @param {string} action.title
 * @param {HTMLElement} action.content
 * @param {string} action.word
 * @param {string} action.button
 * @param {() => Promise<string>} action.run
 */
function confirm({ title, content, word, button, run }) {
  const input = h("input", {
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    autofocus: true,
    "aria-label": `Type ${word} to confirm`,
  });
  const submit = h("button", { type: "submit", class: "danger", disabled: true }, button);
  const result = h("p", { role: "status" });
  input.addEventListener("input", () => {
    submit.disabled = input.value !== word;
  });
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() });
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", {}, title),
    content,
    h("p", {}, "Type ", h("b", {}, word), " to confirm: ", input),
    result,
    h(
      "div",
      { class: "controls" },
      submit,
      h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
    ),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    result.textContent = await run().catch((error) => String(error.message ?? error));
  });
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {Page} page */
function confirmDrain(page) {
  confirm({
    title: "Drain",
    word: "drain",
    button: "Drain",
    content: h(
      "p",
      {},
      "New clients are refused, and Seawall ends when its clients have left or the time of the drain is over. A drain cannot be undone.",
    ),
    run: async () => {
      const response = await act("POST", "drain");
      page.go({});
      return response.ok ? "The drain has begun." : (await response.text()).trim();
    },
  });
}

/** @param {Page} page */
async function confirmReload(page) {
  const changes = h("div", {}, note("Reading the configuration …"));
  confirm({
    title: "Reload the configuration",
    word: "reload",
    button: "Reload",
    content: changes,
    run: async () => {
      const reply = await requestReload("reload").finally(() => page.go({}));
      return reply.applied
        ? `Applied: ${counted(reply.changes.length, "change")}.`
        : reply.problems.join(" ");
    },
  });
  /** @type {import("./types.js").Reload} */
  let reply;
  try {
    reply = await requestReload("reload?dry_run=true");
  } catch (error) {
    fill(changes, note(messageOf(error)));
    return;
  }
  if (reply.problems.length > 0) {
    fill(
      changes,
      note("The new configuration has problems. Nothing would change."),
      h("ul", {}, ...reply.problems.map((problem) => h("li", {}, problem))),
    );
  } else {
    fill(
      changes,
      reply.changes.length === 0
        ? note("No value differs. Files such as certificates are read again.")
        : table(
            "Changes",
            ["Key", "From", "To", ""],
            reply.changes.map((of) => [
              h("code", {}, of.key),
              of.from,
              of.to,
              of.needs_restart ? "needs a restart" : "at once",
            ]),
          ),
    );
  }
}

/**
 * Requests a reload. Throws the reason, which is a text, if Seawall refuses the request itself. If
 * the configuration has problems, returns the reply with these problems.
 * @param {string} path
 * @returns {Promise<import("./types.js").Reload>}
 */
async function requestReload(path) {
  const response = await act("POST", path);
  if (response.ok || response.status === 422) return response.json();
  throw await problem(response);
}
