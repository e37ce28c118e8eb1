//! One simulated client: its steps, its timeouts and its reconnects.

use std::{sync::Arc, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    Plan, Shared,
    link::{Failure, Link},
    record::LoadStep,
    target::Keyring,
    work::{Ask, SEED, check, write_error},
};
use seawall_auth::NonceSource;

/// Pause after a refused connection or login, so that the client does not use all CPU time for
/// reconnecting.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(10);

/// When a load ends, some operations may still wait for their replies. If the load has no rate, it
/// records such a wait only if the wait is longer than this time.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Maximum time between two operations of a client, in seconds: a year. No load takes so long, and
/// a point in time can be this far in the future.
pub(super) const MAX_INTERVAL_S: f64 = 31_536_000.0;

/// Time limit for connecting and logging in before the load, and for each command that prepares the
/// documents.
const PREPARE_LIMIT: Duration = Duration::from_secs(30);

pub(super) struct Client {
    shared: Arc<Shared>,
    number: usize,
    patience: Duration,
    random: StdRng,
}

/// The next operation of a client that sends operations on a schedule. This value is dropped when
/// the load ends. The drop counts missed operations: they were due before the end of the load, but
/// were not sent, because the client was not connected or waited for a reply.
struct NextOperation {
    shared: Arc<Shared>,
    due: Instant,
    interval: Duration,
    is_connected: bool,
    /// True if the operation was sent and its reply has not arrived.
    is_in_flight: bool,
}

impl NextOperation {
    /// Counts the operations that were due before `until` as missed.
    fn skip_until(&mut self, until: Instant) {
        while self.due < until {
            self.shared.record.lock().count_missed(self.due);
            self.due += self.interval;
        }
    }
}

impl Drop for NextOperation {
    fn drop(&mut self) {
        let ends_at = self.shared.ends_at;
        if self.is_in_flight {
            // The load ended before the reply arrived, so the latency is not known. A wait of more
            // than the mean time between two operations of the load is recorded instead of the
            // latency; a shorter wait is not recorded. The interval between the operations of one
            // client is not used here, because it may be longer than the load.
            let clients = u32::try_from(self.shared.plan.clients).unwrap_or(u32::MAX);
            if self.due + self.interval / clients.max(1) < ends_at {
                self.shared.record.lock().record_latency(self.due);
            }
            self.due += self.interval;
            self.skip_until(ends_at);
        } else if !self.is_connected {
            self.skip_until(ends_at);
        }
    }
}

/// One operation of a client that has no schedule: the client connects for this operation only, or
/// sends each operation as soon as the previous reply has arrived. This value is dropped when the
/// operation ends, or when the load ends. If the load ends first, the drop records the operation,
/// unless it has been due for at most [`Arrival::interval`].
struct Arrival {
    shared: Arc<Shared>,
    due: Instant,
    /// The mean time between two operations of the load; [`LONG_WAIT`] if the load has no rate.
    interval: Duration,
    /// True if the operation was sent and its reply has not arrived.
    is_in_flight: bool,
    /// True if the result of the operation is recorded.
    has_ended: bool,
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // The load ended before the operation, so the latency is not known. If the operation has
        // waited for more than one interval, its wait is recorded instead of the latency; if it was
        // not sent, it counts as missed. A shorter wait is not recorded.
        if self.has_ended || self.due + self.interval >= self.shared.ends_at {
            return;
        }
        let mut record = self.shared.record.lock();
        match self.is_in_flight {
            true => record.record_latency(self.due),
            false => record.count_missed(self.due),
        }
    }
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Self {
        let seed = SEED.wrapping_add(u64::try_from(number).unwrap_or(0));
        Self {
            patience: shared.patience(number),
            random: StdRng::seed_from_u64(seed),
            shared,
            number,
        }
    }

    /// Connects, runs one operation and closes the connection, again and again, even after
    /// failures.
    pub(super) async fn run_short_connections(mut self) {
        while Instant::now() < self.shared.ends_at {
            if let Some(mut link) = self.connect().await {
                // The result is ignored: the connection is closed even if the operation succeeded.
                drop(self.ask_now(&mut link).await);
            }
        }
    }

    /// Connects, runs one operation and closes the connection. `due` is the time at which the
    /// client should begin to connect. `rate` is the number of operations per second that are due
    /// for all clients together.
    pub(super) async fn run_arrival(mut self, due: Instant, rate: f64) {
        let mut arrival = Arrival {
            shared: Arc::clone(&self.shared),
            due,
            interval: interval(1, rate),
            is_in_flight: false,
            has_ended: false,
        };
        match self.connect().await {
            Some(mut link) => {
                arrival.is_in_flight = true;
                drop(self.ask(&mut link, due).await);
            }
            None => self.shared.record.lock().count_missed(due),
        }
        arrival.has_ended = true;
    }

    /// Keeps one connection, and sends the next operation as soon as a reply arrives.
    pub(super) async fn run_closed_loop(mut self) {
        while Instant::now() < self.shared.ends_at {
            let Some(mut link) = self.connect().await else {
                continue;
            };
            while self.ask_now(&mut link).await.is_ok() {}
        }
    }

    /// Keeps one connection, and sends operations on a schedule. `rate` is the number of operations
    /// per second that are due for all clients together.
    pub(super) async fn run_at_rate(mut self, rate: f64) {
        let interval = interval(self.shared.plan.clients, rate);
        let mut next = NextOperation {
            shared: Arc::clone(&self.shared),
            due: Instant::now() + interval.mul_f64(self.random.random()),
            interval,
            is_connected: false,
            is_in_flight: false,
        };
        sleep_until(next.due).await;
        while Instant::now() < self.shared.ends_at {
            let Some(mut link) = self.connect().await else {
                continue;
            };
            next.is_connected = true;
            while next.is_connected && Instant::now() < self.shared.ends_at {
                // Operations that have been due for longer than the timeout are not sent, and count
                // as missed.
                if let Some(until) = Instant::now().checked_sub(self.patience) {
                    next.skip_until(until);
                }
                sleep_until(next.due).await;
                next.is_in_flight = true;
                let asked = self.ask(&mut link, next.due).await;
                next.is_in_flight = false;
                next.due += interval;
                next.is_connected = asked.is_ok();
            }
        }
    }

    async fn connect(&self) -> Option<Link> {
        match self.try_connect().await {
            Ok(link) => Some(link),
            Err(failure) => {
                if !matches!(failure, Failure::TimedOut) {
                    sleep(PAUSE_AFTER_REFUSAL).await;
                }
                None
            }
        }
    }

    async fn try_connect(&self) -> Result<Link, Failure> {
        let target = &self.shared.plan.target;
        let connecting = Link::connect(target, self.number);
        let mut link = self.step(LoadStep::Connect, connecting).await?;
        self.step(LoadStep::Hello, link.hello()).await?;
        if let Some(user) = target.user() {
            let logging_in = link.log_in(user, &self.shared.keys, &self.shared.nonces);
            self.step(LoadStep::LogIn, logging_in).await?;
        }
        Ok(link)
    }

    /// Runs an operation that is due now. If the load ends first, a long wait is recorded.
    async fn ask_now(&mut self, link: &mut Link) -> Result<(), Failure> {
        let due = Instant::now();
        let mut arrival = Arrival {
            shared: Arc::clone(&self.shared),
            due,
            interval: LONG_WAIT,
            is_in_flight: true,
            has_ended: false,
        };
        let asked = self.ask(link, due).await;
        arrival.has_ended = true;
        asked
    }

    async fn ask(&mut self, link: &mut Link, due: Instant) -> Result<(), Failure> {
        let Plan { work, target, .. } = &self.shared.plan;
        let ask = work.next(&mut self.random);
        let command = work.command(ask, target.read_mode);
        let asking = async { check(ask, link.run(&command).await?) };
        let asked = self.step(LoadStep::Operation, asking).await;
        match asked {
            Ok(()) => self.shared.record.lock().record_latency(due),
            Err(Failure::TimedOut) => self.shared.record.lock().record_timeout(due),
            Err(_) => {}
        }
        asked
    }

    /// Runs one step with the client's timeout, and records the result.
    async fn step<T>(
        &self,
        step: LoadStep,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let result = timeout(self.patience, work).await;
        let result = result.unwrap_or(Err(Failure::TimedOut));
        self.shared
            .record
            .lock()
            .record_step(step, &result, began.elapsed());
        result
    }
}

/// The time between two operations of a client, from 1 ns to [`MAX_INTERVAL_S`]. `rate` is the
/// number of operations per second that are due for all clients together.
fn interval(clients: usize, rate: f64) -> Duration {
    let clients = u32::try_from(clients).unwrap_or(u32::MAX);
    let seconds = (f64::from(clients) / rate).clamp(1e-9, MAX_INTERVAL_S);
    Duration::from_secs_f64(seconds)
}

/// Logs in once, so that later logins need no key derivation, and inserts the documents.
pub(super) async fn prepare(
    plan: &Plan,
    keys: &Keyring,
    nonces: &NonceSource,
) -> Result<(), (&'static str, Failure)> {
    let work = async {
        let connecting = Link::connect(&plan.target, 0).await;
        let mut link = connecting.map_err(|failure| ("connecting", failure))?;
        link.hello().await.map_err(|failure| ("hello", failure))?;
        if let Some(user) = plan.target.user() {
            let logged_in = link.log_in(user, keys, nonces).await;
            logged_in.map_err(|failure| ("logging in", failure))?;
        }
        Ok(link)
    };
    let connected = timeout(PREPARE_LIMIT, work).await;
    let mut link = connected.unwrap_or(Err(("connecting", Failure::TimedOut)))?;
    let seeded = seed(plan, &mut link).await;
    seeded.map_err(|failure| ("preparing documents", failure))
}

/// Inserts the documents in the order of their `_id`. If the last document exists, an earlier load
/// has inserted all documents, so nothing is inserted.
async fn seed(plan: &Plan, link: &mut Link) -> Result<(), Failure> {
    let last = Ask::Find(plan.work.documents.max(1) - 1);
    let read = plan.work.command(last, plan.target.read_mode);
    let found = timeout(PREPARE_LIMIT, link.run(&read)).await;
    if check(last, found.unwrap_or(Err(Failure::TimedOut))?).is_ok() {
        return Ok(());
    }
    let mut first = 0;
    while first < plan.work.documents {
        let (command, end) = plan.work.seed(first);
        let written = timeout(PREPARE_LIMIT, link.run(&command)).await;
        if let Some(code) = write_error(written.unwrap_or(Err(Failure::TimedOut))?) {
            return Err(Failure::Refused(code));
        }
        first = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bson::{RawDocumentBuf, rawdoc};
    use seawall_wire::{HEADER_BYTES, Header, MAX_MESSAGE_BYTES, encode_op_msg_like};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        task::{JoinSet, yield_now},
        time::advance,
    };

    use super::*;
    use crate::{Behaviour, Plan, Target, Work, record::Record};

    const DURATION: Duration = Duration::from_secs(10);

    /// The state of a load that begins now. No server listens at the address of its target.
    async fn shared() -> Arc<Shared> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let now = Instant::now();
        let plan = Plan {
            target: Target::parse(&format!("mongodb://{address}/"))
                .await
                .unwrap(),
            clients: 1,
            behaviour: Behaviour::KeptAt(10.0),
            duration: DURATION,
            patience: (DURATION * 2, DURATION * 2),
            work: Work {
                database: "load".into(),
                collection: "things".into(),
                documents: 1,
                payload_bytes: 1,
                mix: "find=1".parse().unwrap(),
            },
        };
        Arc::new(Shared {
            plan,
            keys: Keyring::default(),
            nonces: NonceSource::new().unwrap(),
            record: seawall_locks::Mutex::new(Record::new(now)),
            ends_at: now + DURATION,
        })
    }

    /// Accepts one connection. If `delay` is `None`, never replies. Otherwise advances the clock by
    /// `delay` before each reply, and sends `reply` to each command.
    async fn reply_to_all(listener: TcpListener, reply: RawDocumentBuf, delay: Option<Duration>) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let Some(delay) = delay else {
            return pending().await;
        };
        let mut head = [0; HEADER_BYTES];
        while stream.read_exact(&mut head).await.is_ok() {
            let header = Header::parse(&head, MAX_MESSAGE_BYTES).unwrap();
            let mut rest = vec![0; header.message_length - HEADER_BYTES];
            stream.read_exact(&mut rest).await.unwrap();
            advance(delay).await;
            let message = encode_op_msg_like(0, 1, header.request_id, reply.as_bytes());
            stream.write_all(&message).await.unwrap();
        }
    }

    /// While this task runs, only calls of `advance` advance the clock. Without this task, the
    /// clock could also advance while bytes are on their way from one socket to the other. The task
    /// ends by itself. So if a server does not reply, the test fails because of its time limits.
    async fn keep_the_clock_paused() {
        for _ in 0..1_000_000 {
            yield_now().await;
        }
    }

    /// Inserts documents, in six commands, into a server that runs [`reply_to_all`].
    async fn prepare_with(
        reply: RawDocumentBuf,
        delay: Option<Duration>,
    ) -> Result<(), (&'static str, Failure)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("mongodb://{}/", listener.local_addr().unwrap());
        let mut plan = shared().await.plan.clone();
        plan.target = Target::parse(&uri).await.unwrap();
        plan.work.documents = 3000;
        let mut tasks = JoinSet::new();
        tasks.spawn(reply_to_all(listener, reply, delay));
        if delay.is_some() {
            tasks.spawn(keep_the_clock_paused());
        }
        let nonces = NonceSource::new().unwrap();
        let prepared = prepare(&plan, &Keyring::default(), &nonces).await;
        drop(tasks);
        prepared
    }

    #[tokio::test(start_paused = true)]
    async fn the_insertion_of_all_documents_may_take_longer_than_one_command() {
        let reply = rawdoc! { "ok": 1.0, "cursor": { "firstBatch": [] } };
        let prepared = prepare_with(reply.clone(), Some(PREPARE_LIMIT / 2)).await;
        assert!(prepared.is_ok(), "{prepared:?}");
        let prepared = prepare_with(reply, None).await;
        assert!(matches!(prepared, Err(("connecting", Failure::TimedOut))));
    }

    #[tokio::test(start_paused = true)]
    async fn documents_that_the_server_refuses_are_an_error() {
        let reply = rawdoc! { "ok": 1.0, "n": 0, "writeErrors": [{ "index": 0, "code": 121 }] };
        let prepared = prepare_with(reply, Some(Duration::ZERO)).await;
        let step = "preparing documents";
        assert!(
            matches!(prepared, Err((at, Failure::Refused(121))) if at == step),
            "{prepared:?}"
        );
    }

    #[test]
    fn the_interval_between_operations_is_at_least_1_ns_and_at_most_a_year() {
        for (clients, rate, expected) in [
            (10, 100.0, Duration::from_millis(100)),
            (1, 1e12, Duration::from_nanos(1)),
            (5000, 1.0, Duration::from_secs(5000)),
            (1, 1e-300, Duration::from_secs(31_536_000)),
        ] {
            assert_eq!(interval(clients, rate), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn operations_of_a_client_that_stays_disconnected_are_counted_as_missed() {
        let shared = shared().await;
        let client = Client::new(Arc::clone(&shared), 0);
        drop(timeout(DURATION / 2, client.run_at_rate(10.0)).await);
        let missed = shared.record.lock().total().missed;
        assert!((99..=100).contains(&missed), "{missed}");
    }

    #[tokio::test(start_paused = true)]
    async fn operations_due_while_a_client_waits_for_its_last_reply_are_counted_as_missed() {
        for (sent_before_end, expected) in [(1_000, (1, 9)), (50, (0, 0))] {
            let shared = shared().await;
            let sent_before_end = Duration::from_millis(sent_before_end);
            let next = NextOperation {
                due: shared.ends_at - sent_before_end,
                shared: Arc::clone(&shared),
                interval: Duration::from_millis(100),
                is_connected: true,
                is_in_flight: true,
            };
            sleep_until(shared.ends_at).await;
            drop(next);
            let total = shared.record.lock().total();
            assert_eq!((total.from_due.count(), total.missed), expected);
            if expected.0 > 0 {
                assert!(total.from_due.quantile(1.0) >= sent_before_end.mul_f64(0.9));
            }
        }
    }

    /// The interval between two operations of a client is as long as the load.
    #[tokio::test(start_paused = true)]
    async fn the_last_operation_of_one_of_many_clients_is_recorded_if_it_has_no_reply() {
        for (sent_before_end_ms, expected) in [(5_000, 1), (50, 0)] {
            let mut shared = shared().await;
            Arc::get_mut(&mut shared).unwrap().plan.clients = 100;
            let next = NextOperation {
                due: shared.ends_at - Duration::from_millis(sent_before_end_ms),
                shared: Arc::clone(&shared),
                interval: DURATION,
                is_connected: true,
                is_in_flight: true,
            };
            sleep_until(shared.ends_at).await;
            drop(next);
            let total = shared.record.lock().total();
            assert_eq!((total.from_due.count(), total.missed), (expected, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_arrival_that_has_waited_long_at_the_end_of_the_load_is_recorded() {
        for (due_before_end, is_in_flight, expected) in [
            (1_000, true, (1, 0)),
            (1_000, false, (0, 1)),
            (50, true, (0, 0)),
            (50, false, (0, 0)),
        ] {
            let shared = shared().await;
            let due_before_end = Duration::from_millis(due_before_end);
            let arrival = Arrival {
                due: shared.ends_at - due_before_end,
                shared: Arc::clone(&shared),
                interval: Duration::from_millis(100),
                is_in_flight,
                has_ended: false,
            };
            sleep_until(shared.ends_at).await;
            drop(arrival);
            let total = shared.record.lock().total();
            assert_eq!((total.from_due.count(), total.missed), expected);
            if expected.0 > 0 {
                assert!(total.from_due.quantile(1.0) >= due_before_end.mul_f64(0.9));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_without_a_rate_and_without_a_reply_is_recorded_at_the_end() {
        // The listener accepts connections, but no program replies on them.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("mongodb://{}/", listener.local_addr().unwrap());
        let mut shared = shared().await;
        let target = Target::parse(&uri).await.unwrap();
        Arc::get_mut(&mut shared).unwrap().plan.target = target;
        let mut link = Link::connect(&shared.plan.target, 0).await.unwrap();
        let mut client = Client::new(Arc::clone(&shared), 0);
        drop(timeout(DURATION / 2, client.ask_now(&mut link)).await);
        let total = shared.record.lock().total();
        assert_eq!((total.from_due.count(), total.missed), (1, 0));
        assert!(total.from_due.quantile(1.0) >= DURATION.mul_f64(0.45));
    }

    #[tokio::test(start_paused = true)]
    async fn an_arrival_that_cannot_connect_is_counted_once() {
        let shared = shared().await;
        let client = Client::new(Arc::clone(&shared), 0);
        client.run_arrival(Instant::now(), 10.0).await;
        assert_eq!(shared.record.lock().total().missed, 1);
    }
}
