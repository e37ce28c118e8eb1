//! The shards of the recorder, in which threads count operations. Each thread uses one shard, and
//! few threads share a shard, so that threads rarely wait for each other.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use foldhash::fast::RandomState;

use super::{RowIndexes, tally::Tally};
use seawall_locks::{Mutex, MutexGuard};
use seawall_shape::{LearnedNames, ShapeId};

/// Number of shards. It is large, so that two threads of the data plane rarely share a shard.
const SHARDS: usize = 64;

/// The shards of all threads.
pub(super) struct Shards(Vec<Mutex<Shard>>);

#[derive(Default)]
pub(super) struct Shard {
    pub(super) rows: HashMap<(ShapeId, bool), RowIndexes, RandomState>,
    /// The value of `Recorder::generation` when the shard began to fill `rows`, its cache of
    /// look-ups.
    pub(super) generation: u64,
    /// The prefixes of field paths below which all field names count as data, not as part of the
    /// shape; `None` if there are no such prefixes.
    pub(super) names: Option<Arc<LearnedNames>>,
    /// Number of look-ups that found their result in `rows`. Each time the number wraps to 0, the
    /// recorder checks that the row in this result has the text of the command's shape.
    pub(super) hits: u16,
    pub(super) tally: Tally,
}

impl Default for Shards {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

impl Shards {
    /// Locks the shard of this thread.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn mine(&self) -> MutexGuard<'_, Shard> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        let mine = MINE.get() % self.0.len();
        let shard = self.0.get(mine);
        let shard = shard.expect("the remainder is less than the number of shards");
        shard.lock()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        self.0.iter()
    }
}
