/* The members of the API's replies that the page uses. Browsers never load this file. */

export interface Latency {
  p50: number;
  p90: number;
  p99: number;
  p999: number;
  max: number;
}
export interface Bucket {
  gt_seconds: number;
  le_seconds: number;
  count: number;
}
export interface Named {
  name: string;
  count: number;
}
export interface Coded {
  code: string | number;
  count: number;
}
export type Phases = Record<
  "permit" | "checkout" | "forward" | "server" | "receive" | "send",
  number
>;

export interface Connections {
  available: number;
  in_use: number;
  pending: number;
}
/** An instance, and the reason why its figures are missing in a merged reply. */
export interface InstanceState {
  address: string;
  error?: string;
}
export interface Tick {
  instances?: InstanceState[];
  at: number;
  clients: number;
  concurrency_limit: number | null;
  draining: boolean;
  history: boolean;
  in_progress: number;
  server_connections: Connections;
  storm: boolean;
  uptime_seconds: number;
  second: { at: number; count: number; errors: number; p50_ms: number; p99_ms: number } | null;
  wait_queue: number;
  waiting: number;
}
export interface Certificate {
  file: string;
  kind: string;
  not_after: number;
  serial: string;
  subject: string;
}
export interface Status {
  instances?: InstanceState[];
  certificates: Certificate[];
  clients: number;
  credentials: string;
  deployment: string;
  draining: boolean;
  history: { bytes: number; on: boolean };
  injects_faults: boolean;
  mode: string;
  not_ready?: string;
  operations: number;
  server_connections: Connections;
  uptime_seconds: number;
  version: string;
  wait_queue: number;
}
export interface Session {
  role: "read" | "act";
  token_required: boolean;
  peers?: string[];
}

export interface Step {
  distribution?: Bucket[];
  at: number;
  seconds: number;
  count: number;
  errors: number;
  documents: number;
  latency_ms: Latency;
  load_ms: number;
  p50_ms: number;
  p99_ms: number;
  max_ms: number;
  phases_ms: Phases;
  request_bytes: number;
  reply_bytes: number;
}
export interface Timeline {
  step_seconds: number;
  steps: Step[];
}
export interface GaugeSteps {
  step_seconds: number;
  steps: {
    at: number;
    seconds: number;
    gauges: Record<string, { min: number; mean: number; max: number }>;
  }[];
}
export interface HeatmapReply {
  bounds_seconds: [number, number][];
  step_seconds: number;
  columns: { at: number; seconds: number; counts: [number, number][] }[];
}
export interface AreaReply {
  all_servers: boolean;
  count: number;
  other: number;
  shapes: {
    collection: string;
    command: string;
    count: number;
    db: string;
    id: string;
    share: number;
    shape: string;
  }[];
}
export interface Annotation {
  at: number;
  end: number | null;
  kind: string;
  text: string;
}

export interface SeriesName {
  collection: string;
  command: string;
  db: string;
  id: string;
  level: string;
  text: string;
}
export interface Figures {
  count: number;
  documents: number;
  errors: number;
  latency_ms: Latency;
  load_ms: number;
  phases_ms: Phases;
  reply_bytes: number;
  request_bytes: number;
  total_time_ms: number;
  more: { count: number; total_time_ms: number; awaited_time_ms?: number; documents?: number };
  distribution?: Bucket[];
}
export interface RowFigures extends Figures {
  cursors?: { exhausted: number; open_ms: Latency };
  outcomes?: Record<string, number>;
  statements?: number;
  streamed?: number;
}
export interface Shape extends RowFigures {
  collection: string;
  command: string;
  db: string;
  id: string;
  level: string;
  shape: string;
  first_seen?: number;
  last_seen?: number;
  since_seconds?: number;
  since_start?: RowFigures;
  timeline?: Step[];
  applications?: Named[];
  errors_by_code?: Coded[];
}
export interface Shapes {
  shapes: Shape[];
  other: Figures;
  since_seconds?: number;
}
export interface Sparklines {
  from: number;
  step_seconds: number;
  shapes: Record<string, number[]>;
}
export interface SlowOperation {
  instance?: string;
  application: string | null;
  at: number;
  client: string | null;
  collection: string;
  command: string;
  db: string;
  duration_ms: number;
  error_code: string | number | null;
  outcome: string;
  phases_ms: Phases;
  reply_bytes: number;
  server: string | null;
  shape_id: string;
  shape: string | null;
  user: string | null;
}

export interface Rates {
  bytes_per_operation: number;
  count: number;
  documents_per_operation: number;
  p50_ms: number;
  p99_ms: number;
  per_second: number;
  total_time_ms_per_second: number;
}
export interface Change {
  kind: string;
  before: Rates;
  now: Rates;
  cost_ms_per_second: number;
  effect: number;
  ratio: number | null;
  shape: SeriesName;
}
export interface Span {
  count: number;
  from: number;
  to: number;
  seconds: number;
  figures?: { shapes: Shape[] };
}
export interface Changes {
  against: string;
  baseline?: Span;
  now?: Span;
  changes: Change[];
  comparable: boolean;
  reason: string | null;
}

export interface Storm {
  instance?: string;
  applications: Named[];
  arrivals: number;
  client_authentications: number;
  departures: Record<string, number>;
  drivers: Named[];
  ended_at: number | null;
  gave_up_in: Record<string, number>;
  networks: Named[];
  peak_arrivals_per_second: number;
  server_authentications: number;
  server_authentications_absorbed: number;
  server_connections_absorbed: number;
  server_connections_created: number;
  started_at: number;
  users: Named[];
  usual_short_lived_per_second: number;
}
export interface Storms {
  active: boolean;
  learning: boolean;
  storms: Storm[];
}
export interface Episode {
  instance?: string;
  moved: { counter: string; during: number; otherwise: number; score: number }[];
  operations: number;
  phase: string;
  seconds: number;
  server: string | null;
  shapes: (SeriesName & { operations: number })[];
  started_at: number;
  unanswered_pulses: number;
  usual_p99_ms: number;
  waited_ms: number;
  worst_ms: number;
}
export interface Recurring {
  instance?: string;
  counter: string | null;
  current: boolean;
  last_at: number;
  length_seconds: number;
  period_seconds: number;
  phase: string;
  server: string | null;
  times: number;
  unanswered: boolean;
}
export interface Stalls {
  episodes: Episode[];
  recurring: Recurring[];
  pulse: Pulse;
}
export interface Pulse {
  state: string;
  answered?: number;
  mean_ms?: number;
  note?: string;
  /** The error of each server that refused its last sample, by address. */
  refusals?: Record<string, string>;
  unanswered?: number;
}

export interface ClientRow {
  instance?: string;
  application: string | null;
  connected_at: number;
  id: number;
  peer: string;
  user: string | null;
}
export interface Clients {
  clients: ClientRow[];
  count: number;
}
export interface Pool {
  instance?: string;
  available: number;
  in_use: number;
  pending: number;
  server: string;
  state: string;
  wait_queue: number;
  concurrency: {
    exempt: number;
    in_progress: number;
    limit: number | null;
    mode: string;
    reason: string | null;
    reserved: number;
    settled: number | null;
    waiting: number;
  };
  users: {
    available: number;
    in_use: number;
    name: string;
    pending: number;
    source: string;
    wait_queue: number;
  }[];
}
export interface Topology {
  servers: {
    address: string;
    instance?: string;
    max_wire_version: number | null;
    round_trip_ms: number | null;
    suspect: boolean;
    tags: Record<string, string>;
    type: string;
  }[];
  set_name: string | null;
  type: string;
}
export interface ServerRow extends Figures {
  instance?: string;
  address: string;
  answer_ms?: Latency;
}
export interface Configuration {
  values: {
    in_effect: string | null;
    instance?: string;
    key: string;
    origin: string;
    pending: string | null;
    value: string;
  }[];
}
export interface Reload {
  applied: boolean;
  problems: string[];
  changes: { key: string; from: string; to: string; needs_restart: boolean }[];
}

export interface Report {
  annotations: Annotation[];
  changes: Changes;
  pools: Pool[];
  servers: ServerRow[];
  shapes: Shape[];
  stalls: Stalls;
  status: Status;
  storms: Storms;
  timeline: Timeline;
}
/** The data of a page with a report. */
export interface ReportPage {
  bytes: number;
  errors: number;
  from: number;
  instances: string[];
  known_seconds: number;
  latency_ms: Latency;
  load_ms: number;
  operations: number;
  operations_per_second: number;
  report: Report;
  shape_operations: number;
  started_at: number;
  until: number;
  warnings: string[];
}
/** One of two compared reports. */
export interface ReportFile {
  errors: number;
  file: string;
  made_at: number;
  operations: Rates;
  since_seconds: number;
}
/** The data of a page with the comparison of two reports. */
export interface ComparisonPage {
  comparison: {
    baseline: ReportFile;
    caveats: string[];
    changes: Change[];
    comparable: boolean;
    now: ReportFile;
    reason: string | null;
  };
  shapes: { baseline: Shape[]; now: Shape[] };
}

/** The functions and the state that the frame of the page passes to a view. */
export interface Page {
  state: import("./state.js").State;
  main: HTMLElement;
  session: Session | null;
  /** Runs `load` at once, and again at intervals while the page is visible. Shows each result. */
  poll<T>(
    load: (signal: AbortSignal) => Promise<T>,
    show: (result: T) => void,
    options?: PollOptions,
  ): () => void;
  /** Calls `show` for each live update. */
  live(show: (tick: Tick, recent: Tick[]) => void): void;
  /** Runs `end` when the user leaves the view. */
  onLeave(end: () => void): void;
  /** Shows another view, or the same view with other settings. */
  go(changes: Partial<import("./state.js").State>): void;
  /** Keeps settings in the address without showing the view again. */
  keep(changes: Partial<import("./state.js").State>): void;
}
export interface PollOptions {
  seconds?: number;
  failed?: (problem: Error) => void;
  into?: HTMLElement;
  /**
   * True if the figures describe the present. They are then loaded again even if the chosen period
   * has ended. Without this member, true for views without a range.
   */
  isPresent?: boolean;
}
