//! The sums of one thread: the counts and times of the operations that the thread has added since
//! the last collection. The totals regularly collect the sums of all threads.

use std::{mem, sync::Arc, time::Duration};

use seawall_stats::{DenseDistribution, Outcome};

use super::{
    phases::PhaseTally,
    plain::PlainTally,
    rows::row,
    sums::{Record, ServerIndex, Sums},
};

/// The sums of one thread since the last collection, in a form that makes it cheap to add an
/// operation.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The sums of operations that are not plain (see [`super::plain`]). Some of these sums are
    /// missing or incomplete until [`Tally::take`] is called:
    ///
    /// - [`Sums::phases`] and the field `durations` of [`Sums::servers`] are missing.
    ///   [`Tally::take`] computes them from the field `phases`.
    /// - [`Sums::checkouts`] is missing. [`Tally::take`] computes it from the field `checkouts`.
    /// - [`Sums::whole`] is incomplete. [`Tally::take`] adds the operations that were sent to a
    ///   server.
    sums: Sums,
    plain: PlainTally,
    phases: PhaseTally,
    checkouts: Vec<DenseDistribution>,
}

impl Tally {
    /// Adds an operation of an application. `application` is `None` if the application has no name.
    pub(super) fn add(&mut self, record: &Record, application: Option<&Arc<str>>) {
        if !self.plain.add(record, application) {
            self.sums.add(record, application);
        }
        if record.outcome == Outcome::Local || record.is_awaiting {
            return;
        }
        let server = record.server.map(|of| of.0);
        self.phases.add(&record.phases, server, record.has_reply);
    }

    /// Adds the time that a checkout of a connection from a server's pool took.
    pub(super) fn add_checkout(&mut self, server: ServerIndex, time: Duration) {
        if self.checkouts.len() <= server.0 {
            self.checkouts.resize_with(server.0 + 1, Default::default);
        }
        if let Some(checkouts) = self.checkouts.get_mut(server.0) {
            checkouts.record(time);
        }
    }

    /// Removes and returns everything that was added.
    pub(super) fn take(&mut self) -> Sums {
        let mut sums = mem::take(&mut self.sums);
        self.plain.move_to(&mut sums);
        for server in sums.servers.iter().flatten() {
            sums.whole.merge(&server.figures);
        }
        let servers = &mut sums.servers;
        sums.phases = self
            .phases
            .take(|server, times| row(servers, server).durations = times);
        let checkouts = self.checkouts.iter_mut();
        let checkouts = checkouts.map(|mine| Some(Box::new(mine.take())));
        sums.checkouts = checkouts.collect();
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::sums::{NamespaceIndex, RowIndexes, ShapeIndex};
    use seawall_command::CodeCounts;
    use seawall_shape::ShapeId;
    use seawall_stats::PhaseTimes;

    fn record(number: u32) -> Record {
        let id = ShapeId::of_other_row("find", "d", "c");
        let namespace = NamespaceIndex(usize::from(number.is_multiple_of(3)));
        let shape = ShapeIndex {
            namespace,
            serial: number,
            coarse: id,
        };
        let rows = RowIndexes {
            namespace,
            shape: Some(shape),
            id,
            folded: None,
        };
        let time = Duration::from_micros(u64::from(number) * 7 + 1);
        Record {
            rows,
            origin: None,
            origin_id: None,
            origin_folded: None,
            server: Some(ServerIndex(usize::from(number.is_multiple_of(2)))),
            outcome: Outcome::Ok,
            code: None,
            write_errors: 0,
            write_error_codes: CodeCounts::default(),
            write_concern_code: None,
            phases: PhaseTimes::from([1, 2, 3, 4, 5, 6].map(|part| time * part)),
            request_bytes: 100,
            reply_bytes: 200,
            documents: 1,
            statements: 2,
            is_streamed: false,
            has_reply: true,
            is_awaiting: false,
            is_retry: false,
            cursor_time: None,
        }
    }

    /// A *tally* collects the sums of one thread. Adding an operation to a [`Tally`] is cheaper
    /// than adding it to [`Sums`].
    #[test]
    fn a_tally_gives_the_same_sums_as_adding_the_operations_to_sums_directly() {
        let name: Arc<str> = "shop".into();
        let mut tally = Tally::default();
        // `take` empties the tally: the sums of the second round have no operations of the first
        // one. In the second round, the shapes 0 to 19 do not occur, and the shapes 40 to 79 are
        // new.
        for numbers in [0..40, 20..80] {
            let mut expected = Sums::default();
            for number in numbers.clone().chain(numbers) {
                let mut record = record(number);
                if number.is_multiple_of(5) {
                    record.outcome = Outcome::Error;
                    record.code = Some(11);
                }
                tally.add(&record, Some(&name));
                expected.add(&record, Some(&name));
            }
            let sums = tally.take();
            let text = |sums: &Sums| {
                let servers = sums.servers.iter().flatten().map(|of| of.figures.clone());
                let servers: Vec<_> = servers.collect();
                let mut shapes: Vec<_> = sums.shapes.iter().collect();
                shapes.sort_by_key(|(index, _)| index.serial);
                format!("{:?} {servers:?} {shapes:?}", sums.namespaces)
            };
            assert_eq!(text(&sums), text(&expected));
            assert!(sums.shapes.len() >= 40);
        }
        let rest = tally.take();
        assert!(rest.namespaces.is_empty() && rest.shapes.is_empty());
    }
}
