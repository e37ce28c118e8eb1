//! The state of the view: the last responses and the choices of the user. This module sends no
//! requests and draws nothing.

use std::{collections::BTreeMap, time::Duration};

use super::{
    choice::{Choice, Since, Tab},
    histogram::{Move, Range, Scale},
};
use crate::{admin_client::InstanceFailure, figures::float};
use seawall_api::{
    Annotation, Changes, Heatmap, Pools, Shape, Shapes, Stalls, Status, Storms, percent_encode,
};

/// Maximum number of shapes (commands without their values) to request. Users do not scroll through
/// more shapes.
const LIMIT: usize = 200;

/// The requests needed for the current view. A string is the path of a request. A `bool` is true if
/// a request with a fixed path is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) shapes: String,
    pub(super) shape: Option<String>,
    pub(super) changes: Option<String>,
    pub(super) stalls: bool,
    pub(super) pools: bool,
    pub(super) heatmap: Option<String>,
    pub(super) annotations: Option<String>,
}

/// The responses to the requests for the current view. A response is `None` if it was not requested
/// or its request failed.
#[derive(Clone, Debug, Default)]
pub(super) struct Responses {
    pub(super) status: Option<Status>,
    pub(super) shapes: Option<Shapes>,
    pub(super) shape: Option<Shape>,
    pub(super) storms: Option<Storms>,
    pub(super) stalls: Option<Stalls>,
    pub(super) changes: Option<Changes>,
    pub(super) pools: Option<Pools>,
    pub(super) heatmap: Option<HeatResponse>,
    /// The number of operations of each instance, by the address of the instance.
    pub(super) operations: BTreeMap<String, Counted>,
    /// The operations per second of each shape, by the shape's id: the sum of the rates of several
    /// instances. The rate of an instance is computed for the period that its own figures cover.
    /// Empty if there is one instance.
    pub(super) rates: BTreeMap<String, f64>,
    /// The first failure; `None` if all requests succeeded.
    pub(super) failure: Option<InstanceFailure>,
}

/// The number of operations of an instance since the instance started, without the operations to
/// which Seawall itself replied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// The time from the start of `seawall top` until this number was received.
    pub(super) at: Duration,
    pub(super) operations: u64,
    /// The time since the instance started, in whole seconds.
    pub(super) uptime_seconds: f64,
}

impl Counted {
    /// Operations per second since an earlier response of the same instance. `None` if the instance
    /// was restarted in this time, because its counter starts at 0 again.
    fn rate_since(self, before: Self) -> Option<f64> {
        let uptime = self.uptime_seconds - before.uptime_seconds;
        let more = self.operations.checked_sub(before.operations)?;
        // The clock of this machine does not advance while the machine sleeps, but the instance
        // continues to count operations. Both uptimes are rounded down, so more than `uptime - 1`
        // seconds have passed.
        let seconds = self.at.saturating_sub(before.at).as_secs_f64();
        let seconds = seconds.max(uptime - 1.0);
        (uptime >= 0.0 && seconds > 0.0).then(|| float(more) / seconds)
    }
}

/// A heat map with the annotations of its period.
#[derive(Clone, Debug, Default)]
pub(super) struct HeatResponse {
    /// The path of the request.
    pub(super) path: String,
    pub(super) heatmap: Heatmap,
    pub(super) annotations: Vec<Annotation>,
}

/// All data that the view shows, and the choices of the user.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) address: String,
    pub(super) choice: Choice,
    pub(super) status: Option<Status>,
    /// Operations per second of all instances, computed from the last two status responses of each
    /// instance; `None` if no rate can be computed.
    pub(super) operations_per_second: Option<f64>,
    counted: BTreeMap<String, Counted>,
    /// Number of refreshes that were skipped because requests were still pending, since the last
    /// responses arrived.
    pub(super) ticks_without_reply: u64,
    /// True if at least one instance replied to the last status request.
    pub(super) has_figures: bool,
    pub(super) shapes: Shapes,
    rates: BTreeMap<String, f64>,
    pub(super) shape: Option<Shape>,
    pub(super) storms: Storms,
    pub(super) stalls: Stalls,
    pub(super) changes: Changes,
    pub(super) pools: Pools,
    heatmap: Option<HeatResponse>,
    pub(super) failure: Option<InstanceFailure>,
}

impl Model {
    pub(super) fn new(address: &str, choice: Choice) -> Self {
        Self {
            address: address.to_owned(),
            choice,
            ..Self::default()
        }
    }

    /// The requests that the current view needs.
    pub(super) fn wanted(&self) -> Wanted {
        let choice = &self.choice;
        let since = match self.has_history() {
            true => choice.since.parameter(),
            false => String::new(),
        };
        let heat = choice.tab == Tab::HeatMap && self.has_history();
        let heat = heat.then(|| choice.since.heat_parameters());
        let opened = self.selected().filter(|_| choice.is_open);
        let (sort, against) = (choice.sort.as_str(), choice.against.as_str());
        Wanted {
            shapes: format!("/api/v1/shapes?sort={sort}&limit={LIMIT}{since}"),
            shape: opened.map(|shape| {
                let since = since.replacen('&', "?", 1);
                format!("/api/v1/shapes/{}{since}", percent_encode(&shape.id))
            }),
            changes: (choice.tab == Tab::Changes && self.has_history())
                .then(|| format!("/api/v1/changes?against={against}&window=10m")),
            stalls: self.has_history(),
            // The heat map needs the addresses of the servers, so that the user can select a
            // server.
            pools: matches!(choice.tab, Tab::Servers | Tab::HeatMap),
            heatmap: heat.and_then(|period| {
                let of = self.heat_parameters()?;
                Some(format!("/api/v1/heatmap?{period}{of}"))
            }),
            annotations: heat.map(|period| {
                let since = period.split('&').next().unwrap_or_default();
                format!("/api/v1/annotations?{since}")
            }),
        }
    }

    /// True if the proxy keeps a history. A proxy without a history has figures only for the whole
    /// time since its start.
    pub(super) fn has_history(&self) -> bool {
        let status = self.status.as_ref();
        status.is_none_or(|status| status.history.on != Some(false))
    }

    /// The period that the table of shapes or the heat map covers, as text.
    pub(super) fn period(&self) -> String {
        match self.choice.since {
            _ if !self.has_history() => "since the start (the history is off)".to_owned(),
            // The longest period of a heat map. It may begin before the start of the proxy.
            Since::All if self.choice.tab == Tab::HeatMap => "last 7d".to_owned(),
            Since::All => "since the start".to_owned(),
            since => format!("last {}", since.as_str()),
        }
    }

    /// Stores the responses.
    pub(super) fn take(&mut self, responses: Responses) {
        self.count(responses.operations);
        self.ticks_without_reply = 0;
        self.has_figures = responses.status.is_some();
        self.status = responses.status.or(self.status.take());
        fn update<T>(current: &mut T, response: Option<T>) {
            if let Some(response) = response {
                *current = response;
            }
        }
        if responses.shapes.is_some() {
            self.rates = responses.rates;
        }
        update(&mut self.shapes, responses.shapes);
        update(&mut self.storms, responses.storms);
        update(&mut self.stalls, responses.stalls);
        update(&mut self.changes, responses.changes);
        update(&mut self.pools, responses.pools);
        self.heatmap = responses.heatmap.or(self.heatmap.take());
        self.shape = responses.shape.or(self.shape.take());
        self.failure = responses.failure;
    }

    /// Computes the sum of the rates of all instances. The rate of an instance is computed from its
    /// last two responses; an instance without two responses is omitted. The time of each response
    /// is stored for each instance. With one time for all instances, an instance that replies late
    /// would distort the rates of the other instances.
    fn count(&mut self, operations: BTreeMap<String, Counted>) {
        let rates = operations.iter().filter_map(|(address, counted)| {
            let before = self.counted.get(address)?;
            counted.rate_since(*before)
        });
        let sum = |sum: Option<f64>, rate| Some(sum.unwrap_or(0.0) + rate);
        self.operations_per_second = rates.fold(None, sum);
        self.counted.extend(operations);
    }

    /// Operations per second of a shape in the period that the table of shapes covers.
    pub(super) fn rate_of(&self, shape: &Shape) -> f64 {
        let seconds = covered_seconds(&self.shapes, self.status.as_ref());
        let sum = self.rates.get(&shape.id).copied();
        sum.unwrap_or(float(shape.count) / seconds)
    }

    /// The shapes that match the filter, sorted by the chosen figure in descending order.
    pub(super) fn rows(&self) -> Vec<&Shape> {
        let needle = self.choice.filter.to_lowercase();
        let shapes = self.shapes.shapes.iter();
        let mut rows: Vec<_> = shapes
            .filter(|shape| matches_filter(shape, &needle))
            .collect();
        let sort = self.choice.sort;
        rows.sort_by(|a, b| sort.figure(b).total_cmp(&sort.figure(a)));
        rows
    }

    /// The reason why there is no row.
    pub(super) fn why_no_row(&self) -> &'static str {
        match self.choice.filter.is_empty() {
            true => "no operation in this period",
            // The filter does not find shapes that the response counts together.
            false if self.shapes.other.count > 0 => {
                "no listed shape matches the filter, but further shapes are not listed"
            }
            false => "no shape matches the filter",
        }
    }

    /// The index of the row of the selected shape; 0 if no row contains it.
    pub(super) fn cursor(&self, rows: &[&Shape]) -> usize {
        let id = self.choice.selected.as_ref();
        let place = rows.iter().position(|shape| Some(&shape.id) == id);
        place.unwrap_or(0)
    }

    /// The shape at the cursor; `None` if the table has no rows.
    pub(super) fn selected(&self) -> Option<&Shape> {
        let rows = self.rows();
        rows.get(self.cursor(&rows)).copied()
    }

    /// The selected shape with the distribution of its durations. `None` until the response about
    /// this shape has arrived.
    pub(super) fn opened(&self) -> Option<&Shape> {
        let selected = self.selected()?;
        self.shape.as_ref().filter(|shape| shape.id == selected.id)
    }

    /// The heat map that the user selected, for example of one shape or one server. `None` until
    /// its response has arrived.
    pub(super) fn heat_response(&self) -> Option<&HeatResponse> {
        let path = self.wanted().heatmap?;
        self.heatmap
            .as_ref()
            .filter(|response| response.path == path)
    }

    /// Moves the cursor to the row that `row` returns. `row` gets the indexes of the current row
    /// and of the last row.
    pub(super) fn select(&mut self, row: impl FnOnce(usize, usize) -> usize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let row = row(self.cursor(&rows), last).min(last);
        self.choice.selected = rows.get(row).map(|shape| shape.id.clone());
    }

    /// The range that the user chose for the linear histogram. Without a choice, a range up to
    /// about the 99th percentile of the selected shape's durations.
    pub(super) fn range(&self) -> Range {
        match self.choice.scale {
            Scale::Linear(Some(range)) => range,
            _ => {
                let shape = self.opened().or(self.selected());
                Range::up_to(shape.map_or(0.0, |shape| shape.latency_ms.p99 / 1e3))
            }
        }
    }

    /// Moves one end of the range of the linear histogram. Also switches to the linear histogram.
    pub(super) fn move_range(&mut self, by: Move) {
        self.choice.scale = Scale::Linear(Some(self.range().moved(by)));
    }
}

/// Length of the period that the shapes of an instance cover, in seconds, but at least 1 s.
pub(super) fn covered_seconds(shapes: &Shapes, status: Option<&Status>) -> f64 {
    let uptime = status.map_or(0.0, |status| status.uptime_seconds);
    shapes.covered_seconds(uptime).max(1.0)
}

fn matches_filter(shape: &Shape, needle: &str) -> bool {
    let namespace = format!("{}.{}", shape.db, shape.collection);
    let names = [&shape.command, &namespace, &shape.shape, &shape.id];
    names
        .iter()
        .any(|name| name.to_lowercase().contains(needle))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::Value;

    use super::*;
    use seawall_api::{Report, Sort};

    /// A model with the figures of the example report.
    pub(in crate::top) fn model() -> Model {
        let value: Value = serde_json::from_str(include_str!("../report/example.json")).unwrap();
        let report = Report::read(value).unwrap();
        let mut model = Model::new("http://127.0.0.1:9909", Choice::default());
        let responses = Responses {
            status: Some(report.status),
            shapes: Some(Shapes {
                other: report.other,
                shapes: report.shapes,
                since_seconds: Some(report.since_seconds),
            }),
            storms: Some(report.storms),
            stalls: Some(report.stalls),
            changes: Some(report.changes),
            pools: Some(Pools {
                pools: report.pools,
            }),
            ..Responses::default()
        };
        model.take(responses);
        model
    }

    /// The operation counters of some instances, each with the second in which the counter was
    /// received.
    fn operations(operations: &[(&str, u64, u64)]) -> Responses {
        let operations = operations.iter().map(|(address, second, operations)| {
            let counted = Counted {
                at: Duration::from_secs(*second),
                operations: *operations,
                uptime_seconds: float(*second),
            };
            ((*address).to_owned(), counted)
        });
        Responses {
            operations: operations.collect(),
            ..Responses::default()
        }
    }

    #[test]
    fn operations_per_second_include_only_instances_that_replied_to_the_last_two_requests() {
        let (a, b, c) = ("http://a:1", "http://b:1", "http://c:1");
        let mut model = Model::default();
        model.take(operations(&[(a, 1, 100), (b, 1, 500)]));
        model.take(operations(&[(a, 3, 130), (b, 3, 510), (c, 3, 1_000_000)]));
        assert_eq!(model.operations_per_second, Some(20.0));
        model.take(operations(&[(b, 4, 514), (c, 4, 7)]));
        assert_eq!(model.operations_per_second, Some(4.0));
    }

    #[test]
    fn instance_that_replies_late_does_not_distort_the_rate_of_another_instance() {
        let (a, b) = ("http://a:1", "http://b:1");
        let mut model = Model::default();
        model.take(operations(&[(a, 1, 100), (b, 1, 100)]));
        model.take(operations(&[(a, 2, 110), (b, 31, 400)]));
        assert_eq!(model.operations_per_second, Some(20.0));
    }

    #[test]
    fn operations_per_second_need_two_responses_since_the_last_restart_of_the_proxy() {
        let a = "http://a:1";
        let mut model = Model::default();
        model.take(operations(&[(a, 1, 1_000)]));
        assert_eq!(model.operations_per_second, None);
        model.take(operations(&[(a, 3, 1_300)]));
        assert_eq!(model.operations_per_second, Some(150.0));
        model.take(operations(&[(a, 4, 20)]));
        assert_eq!(model.operations_per_second, None);
        model.take(operations(&[(a, 5, 40)]));
        assert_eq!(model.operations_per_second, Some(20.0));
        // If no instance sends a response, the last rate is outdated, so no rate is shown.
        model.take(Responses::default());
        assert_eq!(model.operations_per_second, None);
    }

    #[test]
    fn a_sleep_of_this_machine_or_a_restart_of_a_busy_proxy_does_not_distort_the_rate() {
        let counted = |second, uptime_seconds, operations| {
            let counted = Counted {
                at: Duration::from_secs(second),
                operations,
                uptime_seconds,
            };
            Responses {
                operations: [("http://a:1".to_owned(), counted)].into(),
                ..Responses::default()
            }
        };
        let mut model = Model::default();
        model.take(counted(1, 100.0, 1_000));
        // The machine slept for an hour, and its clock shows only one more second.
        model.take(counted(2, 3_701.0, 37_000));
        assert_eq!(model.operations_per_second, Some(10.0));
        // The proxy was restarted, and its new counter is already higher than the previous one.
        model.take(counted(3, 5.0, 40_000));
        assert_eq!(model.operations_per_second, None);
    }

    #[test]
    fn each_sort_key_sorts_rows_in_descending_order() {
        let mut model = model();
        for sort in Sort::ALL {
            model.choice.sort = sort;
            let rows = model.rows();
            assert!(rows.len() > 5);
            let pairs = rows.iter().zip(rows.iter().skip(1));
            pairs.for_each(|(a, b)| assert!(sort.figure(a) >= sort.figure(b), "{sort}"));
            assert!(
                model
                    .wanted()
                    .shapes
                    .contains(&format!("sort={}&", sort.as_str()))
            );
        }
    }

    #[test]
    fn sorting_shapes_by_total_time_includes_the_time_of_their_get_mores() {
        let mut model = model();
        let last = model.shapes.shapes.len() - 1;
        let lightest = &mut model.shapes.shapes[last];
        lightest.more.total_time_ms = 1e9;
        let id = lightest.id.clone();
        assert_eq!(model.rows()[0].id, id);
    }

    #[test]
    fn filter_matches_commands_namespaces_and_shape_texts_and_ignores_case() {
        let mut model = model();
        let all = model.rows().len();
        let mut found = |filter: &str| {
            model.choice.filter = filter.to_owned();
            model.rows().len()
        };
        assert_eq!(found(""), all);
        assert_eq!(found("no such thing"), 0);
        assert_eq!(found("SHOP.CARTS"), 1);
        assert!((1..all).contains(&found("aggregate")));
        assert!((1..all).contains(&found("_id: ?")));
    }

    #[test]
    fn cursor_stays_on_its_shape_when_the_order_changes() {
        let mut model = model();
        model.select(|row, _| row + 2);
        let id = model.selected().unwrap().id.clone();
        model.choice.sort = Sort::Errors;
        assert_eq!(model.selected().unwrap().id, id);
        model.select(|_, last| last + 5);
        assert_eq!(model.cursor(&model.rows()), model.rows().len() - 1);
        model.choice.filter = "nothing of it".to_owned();
        assert!(model.selected().is_none());
    }

    #[test]
    fn only_visible_figures_are_requested() {
        let mut model = model();
        let wanted = model.wanted();
        assert_eq!(
            wanted.shapes,
            "/api/v1/shapes?sort=total_time&limit=200&since=1m"
        );
        assert_eq!((wanted.shape, wanted.changes), (None, None));
        assert_eq!((wanted.stalls, wanted.pools), (true, false));
        assert_eq!((wanted.heatmap, wanted.annotations), (None, None));
        model.choice.tab = Tab::HeatMap;
        let wanted = model.wanted();
        let expected = "/api/v1/heatmap?since=1m&step=1s";
        assert_eq!(wanted.heatmap.as_deref(), Some(expected));
        let expected = "/api/v1/annotations?since=1m";
        assert_eq!(wanted.annotations.as_deref(), Some(expected));
        assert!(wanted.pools);
        model.choice.tab = Tab::Shapes;
        model.choice.is_open = true;
        model.choice.since = Since::All;
        let id = model.selected().unwrap().id.clone();
        assert_eq!(model.wanted().shape, Some(format!("/api/v1/shapes/{id}")));
        assert_eq!(model.period(), "since the start");
        model.choice.tab = Tab::HeatMap;
        assert!(model.wanted().heatmap.unwrap().contains("since=7d"));
        assert_eq!(model.period(), "last 7d");
        model.choice.tab = Tab::Changes;
        assert!(model.wanted().changes.unwrap().contains("against=1h"));
        model.status.as_mut().unwrap().history.on = Some(false);
        model.choice.since = Since::Minute;
        let wanted = model.wanted();
        assert_eq!(wanted.shapes, "/api/v1/shapes?sort=total_time&limit=200");
        assert_eq!((wanted.changes, wanted.stalls), (None, false));
        assert!(model.period().contains("history is off"));
    }
}
