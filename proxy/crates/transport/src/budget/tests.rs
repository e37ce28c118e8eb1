//! Tests of the budget: which message gets memory, and which holder is evicted. The tests simulate
//! the time.

use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;

use super::{
    super::progress::{LEAST_BYTES_PER_SECOND, RATE_WINDOW},
    *,
};

const ALL: usize = 1_000_000;
const RESERVE: usize = 500_000;
const CHUNK: usize = 64 * 1024;

fn inner() -> (Inner, Instant) {
    (Inner::new(ALL, RESERVE), Instant::now())
}

fn sharer(last: u8) -> Sharer {
    Sharer::at(Some([192, 0, 2, last].into()))
}

/// Adds a message that holds `bytes` bytes and is incomplete: Seawall waits for its sender.
fn holder(inner: &mut Inner, sharer: Sharer, bytes: usize, now: Instant) -> HolderId {
    let id = inner.open(sharer, now);
    assert_eq!(inner.grow(id, bytes, bytes, now), Grant::Granted);
    inner.record_bytes(id, bytes, now);
    inner.holders.get_mut(&id).unwrap().progress.mark_owing(now);
    id
}

fn is_evicted(inner: &Inner, id: HolderId) -> bool {
    inner.holders[&id].is_evicted
}

/// The reserve is memory beside the budget. Only one message at a time may use it, so that this
/// message can be completed.
#[tokio::test(start_paused = true)]
async fn the_waiting_message_with_the_fewest_missing_bytes_is_next_to_get_the_memory_reserve() {
    let (mut inner, now) = inner();
    let _full = holder(&mut inner, sharer(1), ALL, now);
    let [a, b] = [2, 2].map(|last| inner.open(sharer(last), now));
    assert_eq!(inner.grow(a, CHUNK, 300_000, now), Grant::Granted);
    assert_eq!(
        inner.grow(b, CHUNK, 200_000, now),
        Grant::Wait,
        "only one message uses the reserve"
    );
    assert_eq!(inner.grow(a, CHUNK, 300_000 - CHUNK, now), Grant::Granted);
    inner.close(a);
    let c = inner.open(sharer(2), now);
    assert_eq!(
        inner.grow(c, CHUNK, 250_000, now),
        Grant::Wait,
        "message c waits, because message b has fewer bytes left"
    );
    assert_eq!(inner.grow(b, CHUNK, 200_000, now), Grant::Granted);
    assert!(inner.used <= ALL + RESERVE);
}

/// The reserve is memory beside the budget. Only one message at a time may use it, so that this
/// message can be completed.
#[tokio::test(start_paused = true)]
async fn the_memory_reserve_goes_first_to_the_address_that_holds_the_least_memory() {
    let (mut inner, now) = inner();
    let _greedy = holder(&mut inner, sharer(1), ALL, now);
    let first = inner.open(sharer(3), now);
    assert_eq!(inner.grow(first, CHUNK, 100_000, now), Grant::Granted);
    let [mine, other] = [1, 2].map(|last| inner.open(sharer(last), now));
    assert_eq!(inner.grow(mine, 10, 10, now), Grant::Wait);
    assert_eq!(inner.grow(other, CHUNK, 400_000, now), Grant::Wait);
    inner.close(first);
    assert_eq!(
        inner.grow(mine, 10, 10, now),
        Grant::Wait,
        "the message with the fewest bytes left waits, because its address holds more"
    );
    assert_eq!(inner.grow(other, CHUNK, 400_000, now), Grant::Granted);
}

#[tokio::test(start_paused = true)]
async fn many_small_messages_of_one_address_leave_memory_for_other_addresses() {
    const MESSAGE: usize = 60_000;
    let (mut inner, now) = inner();
    loop {
        let greedy = inner.open(sharer(1), now);
        if inner.grow(greedy, MESSAGE, MESSAGE + 5_000, now) == Grant::Wait {
            break;
        }
        inner.record_bytes(greedy, MESSAGE, now);
    }
    assert_eq!(inner.held_by(sharer(1)), 16 * MESSAGE);
    let other = inner.open(sharer(2), now);
    assert_eq!(inner.grow(other, 40_000, 200_000, now), Grant::Granted);
    let finisher = inner.finisher;
    assert_ne!(
        finisher,
        Some(other),
        "the message of the other address needs no reserve"
    );
}

/// The reserve is memory beside the budget. Only one message at a time may use it, so that this
/// message can be completed.
#[tokio::test(start_paused = true)]
async fn a_message_loses_the_memory_reserve_if_its_sender_sends_no_byte_for_one_second() {
    let (mut inner, now) = inner();
    let _full = holder(&mut inner, sharer(1), ALL, now);
    let [a, b] = [2, 3].map(|last| inner.open(sharer(last), now));
    assert_eq!(inner.grow(a, CHUNK, 100_000, now), Grant::Granted);
    assert_eq!(inner.grow(b, CHUNK, 200_000, now), Grant::Wait);
    assert_eq!(
        inner.grow(b, CHUNK, 200_000, now + SILENT_AFTER),
        Grant::Granted
    );
}

/// A message is *silent* if its sender has sent no byte for one second. Eviction frees the memory
/// of a message and closes its connection.
#[tokio::test(start_paused = true)]
async fn a_silent_message_of_the_address_with_the_most_memory_is_evicted_first() {
    let (mut inner, now) = inner();
    let greedy = [0, 1].map(|n| holder(&mut inner, sharer(1), 400_000 + n, now));
    let small = holder(&mut inner, sharer(2), 199_999, now);
    let waiting = inner.open(sharer(1), now);
    assert_eq!(inner.grow(waiting, 500_000, 500_000, now), Grant::Granted);
    let other = inner.open(sharer(3), now);
    assert_eq!(inner.grow(other, 100, 100, now), Grant::Wait);
    assert!(
        !greedy.iter().any(|id| is_evicted(&inner, *id)),
        "a holder that is not silent yet is not evicted"
    );
    let later = now + SILENT_AFTER;
    inner.record_bytes(greedy[1], 1, later);
    inner.finisher = Some(greedy[1]);
    assert_eq!(inner.grow(other, 100, 100, later), Grant::Wait);
    let evicted = [greedy[0], greedy[1], small, waiting].map(|id| is_evicted(&inner, id));
    assert_eq!(evicted, [true, false, false, false]);
    assert_eq!(inner.grow(greedy[0], 1, 1, later), Grant::Evicted);
}

/// Eviction frees the memory of a message and closes its connection. A message is too slow if its
/// bytes arrive below the minimum rate, on average over 30 s. One second without a byte does not
/// make it too slow.
#[tokio::test(start_paused = true)]
async fn only_too_slow_messages_are_evicted_for_a_message_of_the_same_address() {
    let (mut inner, now) = inner();
    let [slow, fast] = [1, 1].map(|last| holder(&mut inner, sharer(last), 400_000, now));
    for id in [slow, fast] {
        // The measurement of the rate begins again here, so that the first 400,000 bytes do not
        // count.
        let mut owing = Progress::default();
        owing.mark_owing(now);
        inner.holders.get_mut(&id).unwrap().progress = owing;
    }
    let waker = Waker::noop();
    for second in 1..RATE_WINDOW.as_secs() {
        let now = now + Duration::from_secs(second);
        inner.record_progress(slow, 100, Some(waker), now);
        inner.record_progress(fast, 2 * LEAST_BYTES_PER_SECOND, Some(waker), now);
    }
    let later = now + RATE_WINDOW;
    let _rest = holder(&mut inner, sharer(1), 200_000, later);
    let _finishing = {
        let id = inner.open(sharer(1), later);
        assert_eq!(inner.grow(id, 100, 100, later), Grant::Granted);
        id
    };
    let waiting = inner.open(sharer(1), later);
    assert_eq!(inner.grow(waiting, CHUNK, CHUNK, later), Grant::Wait);
    assert_eq!([slow, fast].map(|id| is_evicted(&inner, id)), [true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_the_budget_gets_memory_if_no_other_message_holds_memory() {
    let (mut inner, now) = inner();
    let large = inner.open(sharer(1), now);
    let bytes = 2 * (ALL + RESERVE);
    assert_eq!(inner.grow(large, bytes, bytes, now), Grant::Granted);
    inner.close(large);
    assert_eq!((inner.used, inner.by_sharer.len()), (0, 0));
}

/// When the budget is exhausted, each sender has sent about a tenth of its message. Without the
/// reserve, the messages would wait for each other forever.
#[tokio::test(start_paused = true)]
async fn a_thousand_messages_that_together_exceed_the_budget_are_all_completed() {
    const SENDERS: usize = 1_000;
    const MESSAGE: usize = 100_000;
    let budget = MemoryBudget::of_bytes(20_000_000);
    let most = Arc::new(AtomicUsize::new(0));
    let mut sending = tokio::task::JoinSet::new();
    for n in 0..SENDERS {
        let (budget, most) = (budget.clone(), Arc::clone(&most));
        sending.spawn(async move {
            let sharer = sharer(u8::try_from(n % 7).unwrap());
            let mut share = budget.open(sharer);
            let mut have = 0;
            while have < MESSAGE {
                let more = 10_000;
                share.grow(have + more, MESSAGE - have).await?;
                have += more;
                share.settle(have, more, None);
                most.fetch_max(budget.used_bytes(), Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            Ok::<_, Evicted>(())
        });
    }
    let mut completed = 0;
    while let Some(sent) = sending.join_next().await {
        completed += usize::from(sent.unwrap().is_ok());
    }
    assert_eq!(completed, SENDERS);
    let most = most.load(Ordering::Relaxed);
    assert!(most <= 20_000_000, "{most}");
    assert_eq!(budget.used_bytes(), 0);
}

/// Compares the first waiting message and the sums in `inner` with values that are computed from
/// all holders.
fn check(inner: &Inner) {
    let waiting = inner.holders.iter().filter_map(|(id, holder)| {
        let (_, left) = holder.waits?;
        Some((inner.held_by(holder.sharer), holder.sharer, left, *id))
    });
    let first = waiting.min().map(|(held, _, left, id)| (held, left, id));
    assert_eq!(inner.waiting.first(), first);
    let used: usize = inner.holders.values().map(|holder| holder.bytes).sum();
    assert_eq!(inner.used, used);
    let reserve_used = inner.holders.values().map(|holder| holder.reserve_bytes);
    assert_eq!(inner.reserve_used, reserve_used.sum::<usize>());
    assert!(inner.reserve_used <= inner.reserve);
    assert!(inner.used <= inner.all + inner.reserve || inner.by_sharer.len() == 1);
}

proptest! {
    #[test]
    fn the_used_bytes_and_the_next_message_to_get_memory_are_correct_after_random_requests(
        steps in prop::collection::vec((0_u8..4, 0_usize..8, 1_usize..400_000), 1..200),
    ) {
        let (mut inner, mut now) = (Inner::new(ALL, ALL / 2), Instant::now());
        let mut ids = Vec::new();
        for (step, n, bytes) in steps {
            now += Duration::from_millis(20);
            let id = ids.get(n).copied();
            match (step, id) {
                (0, _) if ids.len() < 8 => {
                    let from = sharer(u8::try_from(n % 3).unwrap());
                    ids.push(inner.open(from, now));
                }
                (1, Some(id)) => drop(inner.grow(id, bytes, bytes, now)),
                (2, Some(id)) => inner.release(id, bytes),
                (3, Some(id)) => {
                    inner.close(id);
                    ids.remove(n);
                }
                _ => {}
            }
            check(&inner);
        }
    }
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn poll_grow(
    share: &mut MemoryShare,
    wakes: &Arc<Wakes>,
    bytes: usize,
) -> Poll<Result<(), Evicted>> {
    let waker = Waker::from(Arc::clone(wakes));
    share.poll_grow(&mut Context::from_waker(&waker), bytes, bytes)
}

/// The memory reserve is for one waiting message at a time, so that this message can be completed.
#[tokio::test(start_paused = true)]
async fn try_reserve_fails_if_the_bytes_are_not_free_outside_the_memory_reserve() {
    // Half of these bytes are the reserve.
    let budget = MemoryBudget::of_bytes(1_000);
    let first = budget.try_reserve(sharer(1), 400).unwrap();
    assert_eq!((first.bytes(), budget.used_bytes()), (400, 400));
    let _second = budget.try_reserve(sharer(2), 100).unwrap();
    assert!(budget.try_reserve(sharer(1), 1).is_none());
    assert!(budget.holds_most(sharer(1)) && !budget.holds_most(sharer(2)));
    drop(first);
    assert_eq!(budget.used_bytes(), 100);
    assert!(budget.holds_most(sharer(2)) && !budget.holds_most(sharer(1)));
    let _third = budget.try_reserve(sharer(1), 100).unwrap();
    assert!(budget.holds_most(sharer(1)) && budget.holds_most(sharer(2)));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_memory_is_woken_when_memory_is_released() {
    let budget = MemoryBudget::of_bytes(1_000);
    let mut full = budget.try_reserve(sharer(1), 500).unwrap();
    let (mut first, mut second) = (budget.open(sharer(2)), budget.open(sharer(3)));
    let wakes = [Arc::<Wakes>::default(), Arc::default()];
    // `full` holds all memory outside the reserve, so `first` gets its bytes from the reserve.
    assert!(poll_grow(&mut first, &wakes[0], 100).is_ready());
    assert!(!budget.is_short());
    assert!(poll_grow(&mut second, &wakes[1], 300).is_pending());
    assert!(budget.is_short());
    for (bytes, woken, why) in [
        (500, 0, "no memory was released"),
        (499, 1, "a byte outside the reserve is free"),
    ] {
        full.settle(bytes, 0, None);
        assert_eq!(wakes[1].count(), woken, "{why}");
    }
    assert!(poll_grow(&mut second, &wakes[1], 300).is_pending());
    full.settle(499, 0, None);
    assert_eq!(wakes[1].count(), 1, "no memory was released");
    drop(full);
    assert_eq!(wakes[1].count(), 2);
    assert!(poll_grow(&mut second, &wakes[1], 300).is_ready());
    assert!(!budget.is_short());
    assert_eq!(wakes[0].count(), 0);
}

/// A message is *silent* if its sender has sent no byte for one second. Eviction frees the memory
/// of a message and closes its connection.
#[tokio::test(start_paused = true)]
async fn time_in_which_seawall_does_not_read_does_not_count_as_silence_of_the_sender() {
    const MS: Duration = Duration::from_millis(1);
    let budget = MemoryBudget::of_bytes(1_000);
    let greedy = budget.try_reserve(sharer(1), 500).unwrap();
    let waker = Some(Waker::noop());
    greedy.record_progress(0, waker);
    greedy.pause();
    let wakes = Arc::default();
    let (mut finishing, mut waiting) = (budget.open(sharer(2)), budget.open(sharer(3)));
    assert!(poll_grow(&mut finishing, &wakes, 100).is_ready());
    tokio::time::advance(2_000 * MS).await;
    finishing.record_progress(1, None);
    assert!(poll_grow(&mut waiting, &wakes, 300).is_pending());
    assert!(!greedy.is_evicted());
    greedy.record_progress(0, waker);
    tokio::time::advance(900 * MS).await;
    finishing.record_progress(1, None);
    assert!(poll_grow(&mut waiting, &wakes, 300).is_pending());
    assert!(!greedy.is_evicted());
    // A call without moved bytes does not count as progress of the peer.
    greedy.record_progress(0, waker);
    tokio::time::advance(200 * MS).await;
    finishing.record_progress(1, None);
    assert!(poll_grow(&mut waiting, &wakes, 300).is_pending());
    assert!(greedy.is_evicted());
}

/// A message is *silent* if its sender has sent no byte for one second. Eviction frees the memory
/// of a message and closes its connection.
#[tokio::test(start_paused = true)]
async fn time_in_which_a_message_waits_for_memory_does_not_count_as_silence_of_its_sender() {
    const MS: Duration = Duration::from_millis(1);
    let (mut inner, now) = inner();
    let large = holder(&mut inner, sharer(1), ALL - 100_000, now);
    let sender = holder(&mut inner, sharer(2), 100_000, now);
    let finishing = inner.open(sharer(3), now);
    assert_eq!(inner.grow(finishing, 10, 10, now), Grant::Granted);
    inner.record_bytes(sender, 1, now);
    assert_eq!(inner.grow(sender, CHUNK, CHUNK, now), Grant::Wait);
    let granted_at = now + 900 * MS;
    inner.close(large);
    assert_eq!(inner.grow(sender, CHUNK, CHUNK, granted_at), Grant::Granted);
    inner.record_progress(sender, 0, Some(Waker::noop()), granted_at);
    let rest = inner.open(sharer(4), granted_at);
    let left = ALL - inner.used;
    assert_eq!(inner.grow(rest, left, left, granted_at), Grant::Granted);
    let later = now + 1_500 * MS;
    inner.record_bytes(finishing, 1, later);
    let waiting = inner.open(sharer(5), later);
    assert_eq!(inner.grow(waiting, 100, 100, later), Grant::Wait);
    assert!(!is_evicted(&inner, sender));
}

/// The reserve is memory beside the budget. Only one message at a time may use it, so that this
/// message can be completed.
#[tokio::test(start_paused = true)]
async fn a_waiting_message_is_woken_when_it_gets_the_reserve_that_a_silent_message_loses() {
    let (mut inner, now) = inner();
    let _full = holder(&mut inner, sharer(1), ALL, now);
    let [stalled, first, second] = [2, 3, 4].map(|last| inner.open(sharer(last), now));
    assert_eq!(inner.grow(stalled, 10, 1_000, now), Grant::Granted);
    assert_eq!(inner.grow(first, 100, 100, now), Grant::Wait);
    let wakes = Arc::<Wakes>::default();
    inner.holders.get_mut(&first).unwrap().waker = Some(Waker::from(Arc::clone(&wakes)));
    let later = now + SILENT_AFTER;
    assert_eq!(inner.grow(second, 200, 200, later), Grant::Wait);
    assert_eq!(wakes.count(), 1);
    assert_eq!(inner.grow(first, 100, 100, later), Grant::Granted);
}

/// A message is *silent* if its sender has sent no byte for one second. Eviction frees the memory
/// of a message and closes its connection.
#[tokio::test(start_paused = true)]
async fn a_waiting_message_searches_for_messages_to_evict_at_most_every_50_ms() {
    const MS: Duration = Duration::from_millis(1);
    let (mut inner, now) = inner();
    let silent = holder(&mut inner, sharer(1), ALL, now);
    let [finishing, waiting] = [2, 3].map(|last| inner.open(sharer(last), now));
    assert_eq!(inner.grow(finishing, 10, 10, now), Grant::Granted);
    for (after, is_closed) in [(960, false), (1_009, false), (1_010, true)] {
        let now = now + after * MS;
        inner.record_bytes(finishing, 1, now);
        assert_eq!(inner.grow(waiting, 100, 100, now), Grant::Wait);
        assert_eq!(is_evicted(&inner, silent), is_closed, "{after} ms");
    }
}

/// The reserve is memory beside the budget, for one message at a time. Here, too little memory is
/// free even for the message that may use the reserve.
#[tokio::test(start_paused = true)]
async fn the_waiting_message_with_the_most_bytes_left_is_evicted_if_no_message_can_be_completed() {
    let (mut inner, now) = inner();
    let full = inner.open(sharer(1), now);
    assert_eq!(inner.grow(full, ALL, ALL, now), Grant::Granted);
    let [finishing, short, long] = [2, 3, 4].map(|last| inner.open(sharer(last), now));
    let most = RESERVE - 10;
    assert_eq!(inner.grow(finishing, most, RESERVE, now), Grant::Granted);
    let soon = now + EVICTION_INTERVAL;
    assert_eq!(inner.grow(short, 100, 100, now), Grant::Wait);
    assert_eq!(inner.grow(long, 200, 200, soon), Grant::Wait);
    let evicted = |inner: &Inner| [full, finishing, short, long].map(|id| is_evicted(inner, id));
    assert_eq!(
        evicted(&inner),
        [false; 4],
        "no message is evicted while the message with the reserve can finish"
    );
    let later = soon + EVICTION_INTERVAL;
    assert_eq!(inner.grow(finishing, 100, 100, later), Grant::Wait);
    assert_eq!(evicted(&inner), [false, false, false, true]);
}

/// A message is *silent* if its sender has sent no byte for one second. Eviction frees the memory
/// of a message and closes its connection.
#[tokio::test(start_paused = true)]
async fn a_silent_message_is_evicted_only_if_its_address_has_more_bytes_than_the_waiting_address() {
    for (own, others, is_closed) in [
        (500_000, 400_000, false),
        (450_000, 450_000, false),
        (400_000, 500_000, true),
    ] {
        let (mut inner, now) = inner();
        let mine = inner.open(sharer(1), now);
        assert_eq!(inner.grow(mine, own, own, now), Grant::Granted);
        let silent = holder(&mut inner, sharer(2), others, now);
        let empty = inner.open(sharer(2), now);
        inner.record_progress(empty, 0, Some(Waker::noop()), now);
        let rest = inner.open(sharer(3), now);
        assert_eq!(inner.grow(rest, 100_000, 100_000, now), Grant::Granted);
        assert_eq!(inner.grow(rest, 10, 10, now), Grant::Granted);
        let later = now + SILENT_AFTER;
        inner.record_bytes(rest, 1, later);
        let waiting = inner.open(sharer(1), later);
        assert_eq!(inner.grow(waiting, 100_000, 100_000, later), Grant::Wait);
        assert_eq!(is_evicted(&inner, silent), is_closed, "{own} {others}");
        assert!(
            !is_evicted(&inner, empty),
            "a holder without memory is not evicted"
        );
    }
}

/// The reserve is memory beside the budget. Only one message at a time may use it, so that this
/// message can be completed.
#[tokio::test(start_paused = true)]
async fn a_message_keeps_the_memory_reserve_when_another_message_ends() {
    let (mut inner, now) = inner();
    let _full = holder(&mut inner, sharer(1), ALL, now);
    let [finishing, ended, waiting] = [2, 3, 4].map(|last| inner.open(sharer(last), now));
    assert_eq!(inner.grow(finishing, 10, 1_000, now), Grant::Granted);
    inner.close(ended);
    assert_eq!(inner.grow(waiting, 10, 10, now), Grant::Wait);
    inner.close(finishing);
    assert_eq!(inner.grow(waiting, 10, 10, now), Grant::Granted);
}

#[tokio::test(start_paused = true)]
async fn try_grow_takes_free_memory_only_while_no_message_waits_for_memory() {
    let budget = MemoryBudget::of_bytes(ALL);
    let [mut share, mut other] = [1, 2].map(|last| budget.open(sharer(last)));
    assert!(share.try_grow(CHUNK));
    assert!(!share.try_grow(ALL), "refuses more than the free bytes");
    assert_eq!((share.bytes(), budget.used_bytes()), (CHUNK, CHUNK));
    let mut wait = Box::pin(other.grow(ALL, ALL));
    assert!(futures_util::poll!(wait.as_mut()).is_pending());
    assert!(!share.try_grow(2 * CHUNK), "refuses while a message waits");
    drop(wait);
    drop(other);
    assert!(share.try_grow(2 * CHUNK));
    share.settle(0, 0, None);
    assert_eq!(budget.used_bytes(), 0);
}
