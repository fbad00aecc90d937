// Status page of a node: polls status.json each second and shows it. Rates come from the differences of two polls.
// Names of columns are those of `wedjat top`. Data enters the page as text only.
'use strict';

const POLL_MS = 1000;
const ANSWER_MAX_MS = 5000;
const SPARK_POINTS = 60;
// Share of the time in stalls from which a core's row is marked.
const STALLED = 0.1;

// Cells of the heat map: level 0 is 0, level 1 begins above 0, each further level at twice the number before.
const LEVELS = ['0', '1', '2', '4', '8', '16', '32+'];

function level(value) {
  if (!(value > 0)) return 0;
  return Math.min(LEVELS.length - 1, 1 + Math.floor(Math.log2(Math.max(1, value))));
}

// Formatting

const NUMBER = new Intl.NumberFormat('en', { maximumFractionDigits: 2 });
const COMPACT = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

const count = (value) => (Number.isFinite(value) ? NUMBER.format(value) : '–');
const rate = (value) => (Number.isFinite(value) ? NUMBER.format(Math.round(value)) : '–');
const share = (value) => (Number.isFinite(value) ? `${(100 * Math.min(value, 1)).toFixed(1)}%` : '–');
const tenths = (value) => (Number.isFinite(value) ? value.toFixed(1) : '–');
const compact = (value) => (Number.isFinite(value) ? COMPACT.format(value) : '–');

function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  const whole = Math.max(0, Math.floor(seconds));
  const units = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
  const from = units.findIndex(([, length]) => whole >= length);
  if (from < 0) return '0 s';
  const amount = ([unit, length], at) =>
    `${Math.floor((at === 0 ? whole : whole % units[from][1]) / length)} ${unit}`;
  return units.slice(from, from + 2).map(amount).join(' ');
}

// Elements

function make(name, text, attributes = {}) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// Changes the text of an element that has no other content than this function's.
function setText(element, text) {
  if (element.shown === text) return;
  element.shown = text;
  if (element.firstChild) element.firstChild.data = text;
  else element.textContent = text;
}

function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

// Makes the children of `parent` after the first `skip` as many as `length`.
function resize(parent, length, create) {
  while (parent.children.length > length) parent.lastElementChild.remove();
  while (parent.children.length < length) parent.append(create(parent.children.length));
}

// Table with one row for each item. A column has a key, a name, a description and the text of an item's cell. The
// first one names the row, as a link if there is `link`. `bad` returns the keys of an item's cells that show a problem.
class Table {
  constructor(caption, columns, { link, bad, bar, long } = {}) {
    Object.assign(this, { columns, link, bad, bar });
    this.body = make('tbody');
    const head = make('tr');
    for (const [key, name, title] of columns) {
      head.append(make('th', name, { scope: 'col', title, 'data-column': key }));
    }
    const table = make('table');
    const top = make('thead');
    top.append(head);
    table.append(make('caption', caption), top, this.body);
    this.element = make('div', undefined, { class: long ? 'scroll long' : 'scroll', tabindex: '0', role: 'group', 'aria-label': caption });
    this.element.append(table);
  }

  row() {
    const row = make('tr');
    this.columns.forEach(([key], at) => {
      const cell = make(at === 0 ? 'th' : 'td', undefined, { 'data-column': key });
      if (at === 0) cell.setAttribute('scope', 'row');
      if (at === 0 && this.link) cell.append(make('a'));
      if (key === this.bar) cell.append(make('span'), make('i', undefined, { class: 'bar', 'aria-hidden': 'true' }));
      row.append(cell);
    });
    return row;
  }

  show(items) {
    resize(this.body, items.length, () => this.row());
    items.forEach((item, at) => {
      const row = this.body.children[at];
      const bad = this.bad?.(item) ?? [];
      setClass(row, bad.length > 0 ? 'bad' : '');
      this.columns.forEach(([key, , , text], column) => {
        const cell = row.children[column];
        const target = cell.firstElementChild ?? cell;
        setText(target, text(item));
        setClass(cell, bad.includes(key) ? 'bad' : '');
        if (column === 0 && this.link) target.setAttribute('href', this.link(item));
        if (key === this.bar) cell.lastElementChild.style.setProperty('--share', `${Math.round(100 * Math.min(item[key] || 0, 1))}%`);
      });
    });
  }
}

// Number with the line of its last values.
class Tile {
  constructor(name, title) {
    const svg = (tag) => document.createElementNS('http://www.w3.org/2000/svg', tag);
    this.element = make('div', undefined, { class: 'tile', title });
    this.value = make('b', '–');
    this.line = svg('polyline');
    const spark = svg('svg');
    spark.setAttribute('viewBox', `0 0 ${SPARK_POINTS - 1} 20`);
    spark.setAttribute('preserveAspectRatio', 'none');
    spark.setAttribute('aria-hidden', 'true');
    spark.append(this.line);
    this.element.append(make('span', name), this.value, spark);
    this.values = [];
  }

  show(value, text, isBad) {
    setText(this.value, text);
    setClass(this.element, isBad ? 'tile bad' : 'tile');
    if (!Number.isFinite(value)) return;
    this.values.push(value);
    if (this.values.length > SPARK_POINTS) this.values.shift();
    const most = Math.max(...this.values, 1e-9);
    const first = SPARK_POINTS - this.values.length;
    const point = (one, at) => `${first + at},${(19 - (18 * one) / most).toFixed(1)}`;
    this.line.setAttribute('points', this.values.map(point).join(' '));
  }
}

// Numbers of a node

const flag = (isBad, key) => (isBad ? [key] : []);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const dropped = (core) => sum(Object.values(core.drops));

// Activity of a core between two polls `seconds` apart, and its contents at the second. `before` is missing at the
// first poll.
function coreNumbers(at, before, now, seconds, ticksHz) {
  const counter = (core, name) => core.counters[name] ?? 0;
  const since = (of) => (before && seconds > 0 ? Math.max(0, of(now) - of(before)) : NaN);
  const counted = (name) => since((core) => counter(core, name));
  const sent = (core) => counter(core, 'forwarded') - (core.drops.tx_full ?? 0);
  const stalled = (core) => counter(core, 'stalled_ticks') + counter(core, 'stall_ticks');
  const received = counted('rx_packets');
  const polls = counted('busy_polls');
  return {
    name: at,
    busy: counted('busy_ticks') / ticksHz / seconds,
    stalled: since(stalled) / ticksHz / seconds,
    rx: received / seconds,
    tx: since(sent) / seconds,
    tasks: counted('scheduled') / seconds,
    replies: counted('replies') / seconds,
    refused: counted('refused') / seconds,
    burst: polls > 0 ? received / polls : NaN,
    drops: since(dropped) / seconds,
    pauses: since((core) => core.pauses) / seconds,
    stalls: counter(now, 'stalls'),
    held: counter(now, 'held'),
    waiting: counter(now, 'queued'),
    received: counter(now, 'rx_packets'),
    dropped: dropped(now),
  };
}

// Numbers of a worker. `facts` holds what is known about it besides the state.
function workerNumbers(pool, member, facts, before, seconds) {
  const reports = before ? (member.reports - before.reports) >>> 0 : NaN; // modulo 2^32
  return {
    worker: member.worker,
    pool: pool.id,
    server: member.server,
    load: member.load,
    drift: sum(member.drift),
    outstanding: member.outstanding,
    rate: reports / seconds,
    age: facts.report_age ?? NaN,
    reports: member.reports,
    lost: member.lost,
    away: facts.away === true,
    resting: facts.drained === true || facts.leaving === true,
    state: facts.leaving ? 'leaving' : facts.drained ? 'drained' : member.presence,
  };
}

function poolNumbers(pool, workers) {
  const total = (key) => sum(workers.map((worker) => worker[key]));
  return {
    pool: pool.id,
    policy: pool.auto
      ? `${pool.policy} by auto(objective=${pool.auto.objective}): ${pool.auto.decision || 'no decision yet'}`
      : pool.policy,
    workers: workers.length,
    away: workers.filter((worker) => worker.away).length,
    load: total('load'),
    drift: total('drift'),
    outstanding: total('outstanding'),
    waiting: sum(pool.queued),
    rate: total('rate'),
    lost: total('lost'),
  };
}

function dropNumbers(before, now, seconds) {
  const totals = (state) => {
    const found = new Map();
    for (const core of state.cores) {
      for (const [reason, packets] of Object.entries(core.drops)) {
        found.set(reason, (found.get(reason) ?? 0) + packets);
      }
    }
    return found;
  };
  const earlier = before ? totals(before) : undefined;
  const rows = [...totals(now)].map(([reason, total]) => {
    const since = earlier ? Math.max(0, total - (earlier.get(reason) ?? 0)) / seconds : NaN;
    const help = document.querySelector(`#reason-${CSS.escape(reason)} dd`)?.textContent ?? '';
    return { reason, rate: since, total, help };
  });
  return rows.sort((one, other) => (other.rate || 0) - (one.rate || 0) || other.total - one.total);
}

// Columns: key, name, description, text of a cell.

const CORES = [
  ['core', 'core', 'Number of the core', (core) => String(core.name)],
  ['busy', 'busy', 'Share of the time in polls that brought packets', (core) => share(core.busy)],
  ['stalled', 'stalled', 'Share of the time in pauses of at least 1 ms', (core) => share(core.stalled)],
  ['rx', 'rx/s', 'Packets received a second', (core) => rate(core.rx)],
  ['tx', 'tx/s', 'Packets received and sent on a second', (core) => rate(core.tx)],
  ['tasks', 'tasks/s', 'Tasks given to workers a second', (core) => rate(core.tasks)],
  ['replies', 'replies/s', 'Replies of workers a second', (core) => rate(core.replies)],
  ['refused', 'refused/s', 'Tasks returned to clients a second', (core) => rate(core.refused)],
  ['burst', 'burst', 'Packets of a poll that brought packets', (core) => tenths(core.burst)],
  ['drops', 'dropped/s', 'Packets dropped a second', (core) => rate(core.drops)],
  ['pauses', 'pauses/s', 'Pauses of more than 20 us a second', (core) => rate(core.pauses)],
  ['stalls', 'stalls', 'Pauses of at least 1 ms since the start', (core) => count(core.stalls)],
  ['held', 'held', 'Packets that wait here', (core) => count(core.held)],
  ['waiting', 'waiting', 'Tasks that wait for a worker', (core) => count(core.waiting)],
  ['received', 'received', 'Packets received since the start', (core) => count(core.received)],
  ['dropped', 'dropped', 'Packets dropped since the start', (core) => count(core.dropped)],
];

const POOLS = [
  ['pool', 'pool', 'Id of the pool', (pool) => String(pool.pool)],
  ['policy', 'policy', 'Rule that chooses a worker', (pool) => pool.policy],
  ['workers', 'workers', 'Number of workers', (pool) => count(pool.workers)],
  ['away', 'away', 'Workers that are absent, unregistered, silent or unreachable', (pool) => count(pool.away)],
  ['load', 'load', 'Tasks of the last load reports', (pool) => count(pool.load)],
  ['drift', 'drift', 'Load sent since those reports', (pool) => count(pool.drift)],
  ['outstanding', 'outstanding', 'Tasks in flight: sent and not yet answered', (pool) => count(pool.outstanding)],
  ['waiting', 'waiting', 'Backlog: tasks that wait for a worker', (pool) => count(pool.waiting)],
  ['rate', 'reports/s', 'Load reports a second: replies and messages', (pool) => rate(pool.rate)],
  ['lost', 'lost', 'Tasks written off as lost', (pool) => count(pool.lost)],
];

const WORKERS = [
  ['worker', 'worker', 'Id of the worker', (worker) => String(worker.worker)],
  ['pool', 'pool', 'Id of its pool', (worker) => String(worker.pool)],
  ['server', 'server', 'Address of its server', (worker) => worker.server],
  ['load', 'load', 'Tasks in its last load report', (worker) => count(worker.load)],
  ['drift', 'drift', 'Load sent since that report', (worker) => count(worker.drift)],
  ['outstanding', 'outstanding', 'Tasks in flight: sent and not yet answered', (worker) => count(worker.outstanding)],
  ['age', 'report age', 'Time since its last load report', (worker) => duration(worker.age)],
  ['rate', 'reports/s', 'Load reports a second', (worker) => rate(worker.rate)],
  ['reports', 'reports', 'Load reports, modulo 2^32', (worker) => count(worker.reports)],
  ['lost', 'lost', 'Tasks written off as lost', (worker) => count(worker.lost)],
  ['state', 'state', 'Presence, or drained, or leaving', (worker) => worker.state],
];

const DROPS = [
  ['reason', 'reason', 'Drop reason; the link leads to its explanation', (drop) => drop.reason],
  ['rate', 'dropped/s', 'Packets a second', (drop) => rate(drop.rate)],
  ['total', 'total', 'Packets since the start', (drop) => count(drop.total)],
  ['help', 'the packet', 'Kind of packet', (drop) => drop.help],
];

const PORTS = [
  ['port', 'port', 'Number of the port', (port) => String(port.at)],
  ['device', 'device', 'Name of the device', (port) => port.device],
  ['driver', 'driver', 'Driver of the device', (port) => port.driver],
  ['link', 'link', 'State of the link', (port) => port.link],
  ['rx_missed', 'missed', 'Packets lost because a receive queue was full', (port) => count(port.rx_missed)],
  ['rx_no_mbuf', 'no buffer', 'Packets lost because no buffer was free', (port) => count(port.rx_no_mbuf)],
  ['rx_errors', 'rx errors', 'Packets received damaged', (port) => count(port.rx_errors)],
  ['tx_errors', 'tx errors', 'Packets that the device failed to send', (port) => count(port.tx_errors)],
];

const PEERS = [
  ['node', 'node', 'Number of the node', (peer) => String(peer.node)],
  ['address', 'address', 'Address of the node', (peer) => peer.address],
  ['load', 'load us', 'Waiting work in time per worker slot', (peer) => count(peer.load_us)],
  ['waiting', 'waiting', 'Waiting tasks', (peer) => count(peer.waiting)],
  ['migration', 'migration', 'Probability that a new task migrates there', (peer) => count(peer.migration ?? NaN)],
  ['stealing', 'stealing', 'Probability that it is asked for a task', (peer) => count(peer.stealing ?? NaN)],
  ['state', 'state', 'State of the peer', (peer) => peer.state],
];

const TILES = [
  ['rx', 'rx/s', 'Packets received a second'],
  ['tx', 'tx/s', 'Packets received and sent on a second'],
  ['tasks', 'tasks/s', 'Tasks given to workers a second'],
  ['replies', 'replies/s', 'Replies of workers a second'],
  ['drops', 'dropped/s', 'Packets dropped a second'],
  ['outstanding', 'outstanding', 'Tasks in flight: sent and not yet answered'],
  ['waiting', 'waiting', 'Backlog: tasks that wait for a worker'],
  ['busy', 'busiest core', 'Greatest share of the time in polls that brought packets'],
];

// Heat map of one pool's workers.
class HeatMap {
  constructor() {
    this.title = make('h3');
    this.grid = make('div', undefined, { role: 'img' });
    this.element = make('div');
    this.element.append(this.title, this.grid);
  }

  show(pool, workers, key) {
    setText(this.title, `pool ${pool.pool}, ${pool.policy}, ${pool.workers} workers`);
    setClass(this.grid, workers.length <= 64 ? 'cells wide' : workers.length <= 256 ? 'cells' : 'cells small');
    resize(this.grid, workers.length, () => make('span'));
    let most = 0;
    workers.forEach((worker, at) => {
      const cell = this.grid.children[at];
      most = Math.max(most, worker[key] || 0);
      const heat = Number.isFinite(worker[key]) ? `l${level(worker[key])}` : 'none';
      setClass(cell, worker.away ? 'cell away' : worker.resting ? 'cell resting' : `cell ${heat}`);
      setText(cell, workers.length <= 64 ? String(worker.worker) : '');
    });
    const label = `Workers of pool ${pool.pool} by ${key}: ${pool.workers}, greatest ${count(most)}, ${pool.away} away`;
    this.grid.setAttribute('aria-label', label);
    this.workers = workers;
  }

  // Returns the worker of a cell.
  at(cell) {
    return cell.parentElement === this.grid ? this.workers[[...this.grid.children].indexOf(cell)] : undefined;
  }
}

const COLOURS = [['load', 'load'], ['drift', 'drift'], ['outstanding', 'outstanding'], ['age', 'report age in s']];
let colourSets = 0;

// View of one node: the node itself, or the agent on a leaf's core.
class NodeView {
  constructor() {
    const article = document.getElementById('node').content.cloneNode(true).firstElementChild;
    const part = (name) => article.querySelector(`[data-part="${name}"]`);
    Object.assign(this, { element: article, part, maps: [], key: 'load' });
    const add = (name, ...rest) => {
      const table = new Table(...rest);
      part(name).append(table.element);
      return table;
    };
    this.cores = add('cores', 'Dispatcher cores', CORES, {
      bad: (core) => [...flag(core.drops > 0, 'drops'), ...flag(core.stalled >= STALLED, 'stalled')],
      bar: 'busy',
    });
    this.pools = add('pools', 'Pools', POOLS, { bad: (pool) => flag(pool.away > 0, 'away') });
    this.workers = add('workers', 'Workers', WORKERS, { bad: (worker) => flag(worker.away, 'state'), long: true });
    this.drops = add('drops', 'Dropped packets by reason', DROPS, {
      bad: (drop) => flag(drop.rate > 0, 'rate'),
      link: (drop) => `#reason-${encodeURIComponent(drop.reason)}`,
    });
    const lost = (port) => ['rx_missed', 'rx_no_mbuf', 'rx_errors', 'tx_errors'].filter((key) => port[key] > 0);
    this.ports = add('ports', 'Ports', PORTS, { bad: (port) => [...flag(port.link === 'down', 'link'), ...lost(port)] });
    this.peers = add('peers', 'Nodes of the rack', PEERS, { bad: (peer) => flag(peer.state === 'silent', 'state') });
    this.tiles = TILES.map(([key, ...rest]) => [key, new Tile(...rest)]);
    part('tiles').append(...this.tiles.map(([, tile]) => tile.element));
    this.details = article.querySelector('details');
    this.details.addEventListener('toggle', () => this.showWorkers());
    if (views.length === 0) part('map').id = 'workers'; // a link leads there
    window.addEventListener('hashchange', () => this.follow());
    this.follow();
    this.colours();
    part('heat').addEventListener('pointerover', (event) => this.point(event.target));
  }

  // Opens the table of workers if the address names it.
  follow() {
    if (location.hash === '#workers') this.details.open = true;
  }

  colours() {
    colourSets += 1;
    for (const [key, name] of COLOURS) {
      const input = make('input', undefined, { type: 'radio', name: `colour-${colourSets}`, value: key });
      input.checked = key === this.key;
      input.addEventListener('change', () => {
        this.key = key;
        this.showMaps();
      });
      const label = make('label');
      label.append(input, make('span', name));
      this.part('colour').append(label);
    }
    const entry = (className, text) => {
      const one = make('span');
      one.append(make('i', undefined, { class: `cell ${className}`, 'aria-hidden': 'true' }), make('span', text));
      return one;
    };
    const levels = LEVELS.map((text, at) => entry(`l${at}`, text));
    this.part('legend').append(...levels, entry('none', 'unknown'), entry('away', 'away'), entry('resting', 'drained or leaving'));
  }

  point(cell) {
    const worker = this.maps.map((map) => map.at(cell)).find((found) => found);
    if (!worker) return;
    const numbers = WORKERS.slice(2).map(([, name, , text]) => `${name} ${text(worker)}`);
    setText(this.part('pointed'), `worker ${worker.worker}: ${numbers.join(', ')}`);
  }

  // Shows the status at a poll. `before` is the status of the poll before, if it is of the same process.
  show({ state, members, ports }, before, seconds, facts) {
    const earlier = before?.state;
    const cores = state.cores.map((core, at) => coreNumbers(at, earlier?.cores[at], core, seconds, state.ticks_hz || 1));
    this.all = state.pools.map((pool, index) => {
      const known = earlier?.pools.find((one) => one.id === pool.id)?.members ?? [];
      const places = new Map(known.map((member) => [`${member.member} ${member.worker}`, member]));
      const workers = pool.members.map((member, at) => {
        const same = places.get(`${member.member} ${member.worker}`);
        return workerNumbers(pool, member, members?.[index]?.[at] ?? {}, same, seconds);
      });
      return [poolNumbers(pool, workers), workers];
    });
    const pools = this.all.map(([pool]) => pool);
    this.showFacts(facts);
    this.showTiles(cores, pools);
    this.cores.show(cores);
    this.pools.show(pools);
    setText(this.part('map-title'), state.role === 'spine' ? 'Leaves' : 'Workers');
    this.showMaps();
    this.showWorkers();
    const drops = dropNumbers(earlier, state, seconds);
    this.part('no-drops').hidden = drops.length > 0;
    this.drops.element.hidden = drops.length === 0;
    this.drops.show(drops);
    const down = new Set(state.ports_without_link);
    this.part('ports').hidden = !ports?.length;
    this.ports.show((ports ?? []).map((port, at) => ({ ...port, at, link: down.has(at) ? 'down' : 'up' })));
    this.part('peers').hidden = !state.peers;
    const peer = (one) => ({ ...one, state: one.node === state.peers.own ? 'this one' : one.live ? 'live' : 'silent' });
    this.peers.show(state.peers?.nodes.map(peer) ?? []);
  }

  showFacts(facts) {
    const list = this.part('facts');
    resize(list, facts.length, () => {
      const fact = make('div');
      fact.append(make('dt'), make('dd'));
      return fact;
    });
    facts.forEach(([name, text, isBad], at) => {
      const fact = list.children[at];
      setClass(fact, isBad ? 'bad' : '');
      setText(fact.firstElementChild, name);
      setText(fact.lastElementChild, text);
    });
  }

  showTiles(cores, pools) {
    const values = {
      outstanding: sum(pools.map((pool) => pool.outstanding)),
      waiting: sum(pools.map((pool) => pool.waiting)),
      busy: Math.max(...cores.map((core) => core.busy)),
    };
    for (const [key, tile] of this.tiles) {
      const value = values[key] ?? sum(cores.map((core) => core[key]));
      tile.show(value, key === 'busy' ? share(value) : compact(value), key === 'drops' && value > 0);
    }
  }

  showMaps() {
    const pools = this.all ?? [];
    this.part('map').hidden = pools.every(([, workers]) => workers.length === 0);
    while (this.maps.length > pools.length) this.maps.pop().element.remove();
    while (this.maps.length < pools.length) {
      this.maps.push(new HeatMap());
      this.part('heat').append(this.maps.at(-1).element);
    }
    pools.forEach(([pool, workers], at) => this.maps[at].show(pool, workers, this.key));
  }

  // Fills the table of workers while it is open.
  showWorkers() {
    if (this.details.open) this.workers.show((this.all ?? []).flatMap(([, workers]) => workers));
  }
}

// Polls

const views = [];
let last;
let lostSince;

function nodeFacts(status) {
  const { state, controller } = status;
  const link = controller && `${controller.address}${controller.connected ? '' : ' (not connected)'}`;
  return [
    ['role', state.role],
    ['id', String(state.node)],
    ['revision', status.revision],
    ['process', String(state.pid)],
    ['uptime', duration(status.time - state.started)],
    ['membership version', String(state.epoch)],
    ['acknowledged version', String(status.acknowledged), status.acknowledged < state.epoch],
    ['controller', link ?? 'none', controller && !controller.connected],
  ];
}

function show(status) {
  const { state } = status;
  const isSame = last && last.state.pid === state.pid && last.state.started === state.started && last.time < status.time;
  const before = isSame ? last : undefined;
  const seconds = before ? status.time - before.time : NaN;
  const nodes = [[status, before, seconds, nodeFacts(status)]];
  if (state.agent) {
    const { agent } = state;
    const facts = [['role', `${agent.role} on the leaf's core`], ['id', String(agent.node)], ['membership version', String(agent.epoch)]];
    nodes.push([{ state: agent }, before?.state.agent && { state: before.state.agent }, seconds, facts]);
  }
  while (views.length < nodes.length) {
    views.push(new NodeView());
    document.getElementById('nodes').append(views.at(-1).element);
  }
  nodes.forEach((node, at) => views[at].show(...node));
  last = status;
  const name = `${state.role} ${state.node}`;
  setText(document.getElementById('name'), name);
  if (document.title !== `${name} - wedjat`) document.title = `${name} - wedjat`;
}

function setConnection(state, text) {
  document.documentElement.dataset.connection = state;
  setText(document.getElementById('connection'), text);
}

async function poll() {
  try {
    const answer = await fetch('status.json', { cache: 'no-store', signal: AbortSignal.timeout(ANSWER_MAX_MS) });
    if (!answer.ok) throw new Error(`the node answers ${answer.status}`);
    const status = await answer.json();
    lostSince = undefined;
    show(status);
    setConnection('live', 'live');
  } catch (error) {
    lostSince ??= new Date();
    setConnection('lost', `connection lost at ${lostSince.toLocaleTimeString()}; the numbers are old (${error.message})`);
  }
  setTimeout(poll, POLL_MS);
}

poll();
