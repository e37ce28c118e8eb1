use std::{future::pending, net::Ipv4Addr, sync::mpsc, thread};

use bson::doc;
use seawall_auth::NonceSource;
use seawall_transport::connection::Connector;
use tokio::{
    sync::oneshot,
    time::{advance, sleep_until},
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn server() -> Server {
    Server {
        address: "a:1".to_owned(),
        settings: PulseSettings {
            interval: SECOND,
            timeout: SECOND,
        },
        samples: Arc::default(),
        cost: Arc::default(),
        refusals: OccasionalLog::default(),
        logged_refusal: Mutex::default(),
    }
}

/// A service account whose connection string is not resolved yet.
fn account() -> Arc<ServiceAccount> {
    let nonces = Arc::new(NonceSource::new().unwrap());
    Arc::new(ServiceAccount::new(Connector::new(
        None,
        Vec::new(),
        SECOND,
        nonces,
    )))
}

fn replies(server: &Server) -> Vec<bool> {
    let samples = server.samples.lock();
    samples.0.iter().map(|sample| sample.has_reply).collect()
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_is_used_and_each_sampling_interval_without_a_reply_is_recorded() {
    let server = server();
    let (sender, reply) = oneshot::channel();
    let sent_at = Instant::now();
    let waiting = server.wait_for_reply(reply, sent_at);
    let late = async {
        sleep_until(sent_at + Duration::from_millis(2_500)).await;
        sender.send(7).unwrap();
    };
    let (reply, ()) = tokio::join!(waiting, late);
    assert_eq!(reply, Some(Ok(7)));
    assert_eq!(replies(&server), [false, false]);
    assert_eq!(server.cost.lock().without_reply, 2);
}

#[tokio::test(start_paused = true)]
async fn no_missing_reply_is_recorded_if_the_reply_arrives_at_once() {
    let server = server();
    let reply = server
        .wait_for_reply(std::future::ready(7), Instant::now())
        .await;
    assert_eq!(reply, Some(7));
    assert!(replies(&server).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_command_is_abandoned_after_ten_seconds_without_a_reply() {
    let server = server();
    let sent_at = Instant::now();
    assert_eq!(server.wait_for_reply(pending::<()>(), sent_at).await, None);
    assert!(sent_at.elapsed() >= GIVE_UP_AFTER);
    assert_eq!(replies(&server), [false; 10]);
}

#[test]
fn each_reply_adds_a_sample_and_a_round_trip_time() {
    let server = server();
    let reading = CounterReading::of(&doc! { "connections": { "current": 3 } });
    server.record_reply(reading.values(None), Duration::from_millis(2));
    server.record_reply(reading.values(None), Duration::from_millis(1));
    let samples = std::mem::take(&mut server.samples.lock().0);
    assert_eq!(samples.len(), 2);
    assert!(samples[0].has_reply);
    let counters: Vec<_> = samples[0].counters.iter().collect();
    assert_eq!(counters, [("connections", 3.0)]);
    let cost = server.cost.lock().clone();
    assert_eq!((cost.replies, cost.without_reply, cost.refused), (2, 0, 0));
    assert_eq!(cost.total_time, Duration::from_millis(3));
    assert_eq!(cost.longest, Duration::from_millis(2));
}

#[test]
fn an_error_reply_of_a_server_counts_as_a_reply_and_is_listed_until_the_next_success() {
    let server = server();
    server.record_refusal("Unauthorized (13)".to_owned());
    server.record_refusal("Unauthorized (13)".to_owned());
    assert_eq!(replies(&server), [true, true]);
    assert_eq!(server.cost.lock().refused, 2);
    assert_eq!(server.cost.lock().refusals.len(), 1);
    server.record_reply(Counters::default(), SECOND);
    assert!(server.cost.lock().refusals.is_empty());
}

/// The reason of a refusal may change with each sample.
#[tokio::test(start_paused = true)]
async fn refusals_of_a_server_are_logged_at_most_once_a_minute_and_listed_at_once() {
    let (server, [first, second]) = (server(), ["Unauthorized (13)", "error (8000)"]);
    for (seconds, refusal, logged) in [
        (0, first, first),
        (1, second, first),
        (58, first, first),
        // More than a minute after the last line, a new reason is logged.
        (2, second, second),
    ] {
        advance(SECOND * seconds).await;
        server.record_refusal(refusal.to_owned());
        assert_eq!(server.logged_refusal.lock().as_deref(), Some(logged));
        let cost = server.cost.lock();
        assert_eq!(cost.refusals["a:1"], refusal);
    }
}

/// A server may refuse a `serverStatus` command that excludes parts of the section `metrics`.
///
/// 9 is FailedToParse, 13 is Unauthorized, and 11601 is Interrupted. 91, 11600 and 11602 are the
/// codes of a server that shuts down or changes its role.
#[test]
fn parts_of_metrics_are_excluded_until_the_server_has_refused_this_twice_in_a_row() {
    let mut exclusion = PartExclusion::default();
    for code in [13, 91, 11_600, 11_602] {
        assert!(!exclusion.count_refusal(code), "{code}");
    }
    for _ in 0..3 {
        assert!(exclusion.count_refusal(11_601));
        assert!(exclusion.is_on());
        exclusion.count_success();
    }
    assert!(exclusion.count_refusal(9) && exclusion.count_refusal(9));
    assert!(!exclusion.is_on() && !exclusion.count_refusal(9));
    exclusion.count_success();
    assert!(!exclusion.is_on());
}

#[test]
fn the_oldest_samples_are_dropped_when_the_maximum_number_is_reached() {
    let at = |seconds: usize| SystemTime::UNIX_EPOCH + SECOND * u32::try_from(seconds).unwrap();
    let mut samples = Samples::default();
    for second in 0..2 * MAX_SAMPLES {
        samples.add(at(second), true, Counters::default());
    }
    assert_eq!(samples.0.len(), MAX_SAMPLES);
    assert_eq!(samples.0[0].at, at(MAX_SAMPLES));
}

#[tokio::test]
async fn set_servers_starts_and_stops_samplers() {
    let settings = PulseSettings {
        interval: SECOND,
        timeout: SECOND,
    };
    let pulse = Pulse::new(account(), settings, Handle::current());
    // Nothing listens on these addresses; the test does not wait for replies.
    let address = |port: u16| format!("{}:{port}", Ipv4Addr::LOCALHOST);
    pulse.set_servers(&[address(1), address(2), "no address:x".to_owned()]);
    let task = |port| {
        pulse
            .servers
            .lock()
            .get(&address(port))
            .map(|sampler| sampler.task.id())
    };
    let second = task(2);
    assert!(task(1).is_some() && second.is_some());
    assert_eq!(pulse.servers.lock().len(), 2);
    pulse.cost.lock().refusals.insert(address(1), String::new());
    pulse.set_servers(&[address(2)]);
    assert_eq!((task(1), task(2)), (None, second));
    assert_eq!(pulse.cost(), SamplingCost::default());
    let samplers = pulse.servers.lock();
    samplers[&address(2)]
        .samples
        .lock()
        .add(SystemTime::now(), false, Counters::default());
    drop(samplers);
    let taken = || {
        let servers = pulse.take_samples().into_iter();
        let counts = servers.map(|(server, samples)| (String::from(server), samples.len()));
        counts.collect::<Vec<_>>()
    };
    assert_eq!(taken(), [(address(2), 1)]);
    assert_eq!(taken(), [(address(2), 0)]);
}

#[test]
fn the_server_status_command_excludes_unused_sections() {
    let command = |excludes_parts| {
        let command = server_status_command(excludes_parts);
        Document::try_from(&*command).unwrap()
    };
    let excluding = command(true);
    assert_eq!(excluding.keys().next().unwrap(), "serverStatus");
    assert_eq!(excluding.get_i32("locks").unwrap(), 0);
    for read in [
        "wiredTiger",
        "queues",
        "globalLock",
        "network",
        "extra_info",
    ] {
        assert!(!excluding.contains_key(read), "{read}");
    }
    let metrics = excluding.get_document("metrics").unwrap();
    assert!(!metrics.get_bool("commands").unwrap());
    assert!(!metrics.contains_key("document"));
    assert_eq!(command(false).get_i32("metrics").unwrap(), 1);
}

#[tokio::test]
async fn concurrent_calls_of_configure_and_set_servers_do_not_block_each_other() {
    const ROUNDS: u64 = 5_000;
    let pulse = Arc::new(Pulse::new(account(), server().settings, Handle::current()));
    let (configured, other) = (Arc::clone(&pulse), Arc::clone(&pulse));
    let (done, ended) = mpsc::channel();
    let also_done = done.clone();
    // The threads are not joined, because threads that block each other never end.
    thread::spawn(move || {
        for round in 0..ROUNDS {
            let interval = Duration::from_secs(1_000 + round);
            configured.configure(PulseSettings {
                interval,
                timeout: SECOND,
            });
        }
        done.send(()).unwrap();
    });
    thread::spawn(move || {
        for round in 0..ROUNDS {
            other.set_servers(&[format!("127.0.0.1:{}", 1 + round % 2)]);
        }
        also_done.send(()).unwrap();
    });
    for _ in 0..2 {
        let thread = ended.recv_timeout(60 * SECOND);
        thread.expect("the two threads do not block each other");
    }
}
