//! Lines of text for the terminal and for the text report: reconnect storms, stalls of servers,
//! changes of shapes since an earlier period, and connection pools.

use super::{choice::Tab, model::Model};
use crate::figures::{
    bytes, count, float, millis, moment, namespace, percent, printable, ratio, seconds, table,
};
use seawall_api::{
    Change, Changes, Concurrency, Episode, Named, Pool, Pulse, Recurring, Span, Stalls, Storm,
    Storms,
};

/// Maximum number of names (for example, of client networks or server counters) in one cell of the
/// tables of storms and stalls.
const SHOWN_NAMES: usize = 3;

/// The text after `no storm` and `no stall` in the live view. Seawall forgets storms and stalls
/// when it restarts.
pub(crate) const SINCE_START: &str = " since the start";

/// The lines of the current pane; `None` if this pane shows shapes or a heat map. If the history is
/// off, there is no heat map, and a line of the pane says so.
pub(super) fn lines(model: &Model) -> Option<Vec<String>> {
    let lines = match model.choice.tab {
        Tab::Storms => storms(&model.storms, SINCE_START),
        Tab::Stalls | Tab::Changes | Tab::HeatMap if !model.has_history() => {
            vec!["the history is off: set history.enabled = true".to_owned()]
        }
        Tab::Stalls => stalls(&model.stalls, SINCE_START),
        Tab::Changes => changes(&model.changes, model.choice.against.as_str()),
        Tab::Servers => pools(&model.pools.pools),
        Tab::Shapes | Tab::HeatMap => return None,
    };
    Some(lines)
}

/// A table of storms. If there is no storm, the result is one line: `no storm`, then `since`, then
/// a note if the usual rate is not known yet.
pub(crate) fn storms(storms: &Storms, since: &str) -> Vec<String> {
    if storms.storms.is_empty() {
        let learning = match storms.learning {
            true => "; still learning the usual rate",
            false => "",
        };
        return vec![format!("no storm{since}{learning}")];
    }
    let row = |storm: &Storm| {
        let length = match storm.ended_at {
            Some(end) => seconds(end - storm.started_at),
            None => "ongoing".to_owned(),
        };
        vec![
            moment(storm.started_at),
            length,
            count(float(storm.arrivals)),
            count(storm.peak_arrivals_per_second),
            count(storm.usual_short_lived_per_second),
            count(float(storm.server_connections_created)),
            count(float(storm.server_connections_absorbed)),
            count(float(storm.server_authentications_absorbed)),
            names(&storm.applications),
            names(&storm.networks),
        ]
    };
    let instances = storms.storms.iter().map(|storm| &storm.instance);
    let rows = with_instances(storms.storms.iter().map(row), instances);
    let headings = [
        "<began (UTC)",
        "length",
        "clients connected",
        "peak/s",
        "usual/s",
        "opened",
        "connections absorbed",
        "logins absorbed",
        "<applications",
        "<networks",
        INSTANCE_HEADING,
    ];
    table(shown(&headings, &rows), &rows)
}

/// The heading of the last column. A table has this column only if its figures come from several
/// instances.
const INSTANCE_HEADING: &str = "<reported by";

/// Adds a last cell with the name of the instance to each row, if the figures come from several
/// instances.
fn with_instances<'a>(
    rows: impl Iterator<Item = Vec<String>>,
    instances: impl Iterator<Item = &'a Option<String>>,
) -> Vec<Vec<String>> {
    let rows = rows.zip(instances);
    rows.map(|(mut row, instance)| {
        row.extend(instance.as_deref().map(printable));
        row
    })
    .collect()
}

/// The headings of the columns that `rows` has. The last headings are omitted if no row has cells
/// for them.
fn shown<'a>(headings: &'a [&'a str], rows: &[Vec<String>]) -> &'a [&'a str] {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    headings.get(..columns).unwrap_or(headings)
}

/// The first names with their counts, at most [`SHOWN_NAMES`].
pub(crate) fn names(names: &[Named]) -> String {
    let names = names.iter().take(SHOWN_NAMES);
    let names =
        names.map(|name| format!("{} ({})", printable(&name.name), count(float(name.count))));
    names.collect::<Vec<_>>().join(", ")
}

/// The state of the pulse (the sampling of `serverStatus`), then the recurring stalls, then a table
/// of the stalls in the requested period. If this period has no stall, the line `no stall`,
/// followed by `since`, replaces the table. Stalls may still recur although the period has none.
pub(crate) fn stalls(stalls: &Stalls, since: &str) -> Vec<String> {
    let mut lines = vec![format!(
        "pulse (samples of serverStatus): {}",
        pulse(&stalls.pulse)
    )];
    let again = stalls.recurring.iter();
    lines.extend(again.map(recurs));
    if stalls.episodes.is_empty() {
        lines.push(format!("no stall{since}"));
        return lines;
    }
    let row = |episode: &Episode| {
        vec![
            moment(episode.started_at),
            seconds(episode.seconds),
            server(episode.server.as_deref()),
            count(float(episode.operations)),
            millis(episode.waited_ms),
            printable(&episode.phase),
            millis(episode.usual_p99_ms),
            millis(episode.worst_ms),
            moved(episode),
            affected_shapes(episode),
        ]
    };
    let instances = stalls.episodes.iter().map(|episode| &episode.instance);
    let rows = with_instances(stalls.episodes.iter().map(row), instances);
    let headings = [
        "<began (UTC)",
        "length",
        "<server",
        "operations",
        "waited",
        "<longest phase",
        "usual p99",
        "worst",
        "<moved on the server",
        "<shapes that waited",
        INSTANCE_HEADING,
    ];
    lines.extend(table(shown(&headings, &rows), &rows));
    lines
}

/// The state of the `serverStatus` sampling as text. If the sampling is on, the text also has the
/// number of replies and their mean time. It then also has the numbers of refused requests and of
/// requests without a reply. A note from the API is added at the end, if there is one.
pub(crate) fn pulse(pulse: &Pulse) -> String {
    let state = match pulse.state.as_str() {
        "" => "unknown".to_owned(),
        "on" => format!(
            "on, {} replies, {} on average, {} without a reply, {} refused",
            count(float(pulse.answered.unwrap_or_default())),
            millis(pulse.mean_ms.unwrap_or_default()),
            count(float(pulse.unanswered.unwrap_or_default())),
            count(float(pulse.refused.unwrap_or_default())),
        ),
        off => printable(off),
    };
    match &pulse.note {
        None => state,
        Some(note) => format!("{state}; {}", printable(note)),
    }
}

/// A recurring stall as text. If the stall no longer recurs, the text says when it was last seen.
pub(crate) fn recurs(recurring: &Recurring) -> String {
    let recurrence = recurrence(recurring);
    match recurring.is_current() {
        true => format!("recurs {recurrence}"),
        false => format!(
            "recurred {recurrence}; last seen {} UTC",
            moment(recurring.last_at)
        ),
    }
}

/// A recurring stall as text: its period, its length, its server, how often it occurred, and the
/// phase in which its operations spent the additional time. The next part is the server counter
/// that changes during the stall. If none is known, this part says whether the pulse (the sampling
/// of `serverStatus`) got no reply. The last part is the instance that reported the stall, if it is
/// known.
pub(crate) fn recurrence(recurring: &Recurring) -> String {
    let why = match &recurring.counter {
        Some(counter) => format!("with {}", printable(counter)),
        None if recurring.unanswered => "no reply to the pulse".to_owned(),
        // The text does not say that no counter changed: the counters may be unknown, for example
        // if the pulse (the sampling of `serverStatus`) is off.
        None => "no counter known".to_owned(),
    };
    let instance = recurring.instance.as_deref();
    let instance = instance.map(|address| format!(", reported by {}", printable(address)));
    format!(
        "every {} for {} on {}, {} times, in phase {}, {why}{}",
        seconds(recurring.period_seconds),
        seconds(recurring.length_seconds),
        server(recurring.server.as_deref()),
        recurring.times,
        printable(&recurring.phase),
        instance.unwrap_or_default(),
    )
}

/// The address of a stalled server. Without an address, the stall affected the whole deployment, or
/// operations for which no server had been selected yet.
pub(crate) fn server(address: Option<&str>) -> String {
    address.map_or("all servers".to_owned(), printable)
}

/// The server counters that differed from their usual values during a stall, and the number of
/// pulses (samples of `serverStatus`) without a reply.
pub(crate) fn moved(episode: &Episode) -> String {
    let moved = episode.moved.iter().take(SHOWN_NAMES).map(|moved| {
        let figure = |number| match moved.counter.contains("bytes") {
            true => bytes(number),
            false => count(number),
        };
        let (during, otherwise) = (figure(moved.during), figure(moved.otherwise));
        format!(
            "{} {during} (otherwise {otherwise})",
            printable(&moved.counter)
        )
    });
    let without_reply = match episode.unanswered_pulses {
        0 => None,
        many => Some(format!("{many} pulses without a reply")),
    };
    moved.chain(without_reply).collect::<Vec<_>>().join(", ")
}

/// The shapes (commands without their values) whose operations were delayed by a stall, each with
/// the number of its delayed operations. At most [`SHOWN_NAMES`] shapes, those with the most
/// delayed operations first.
pub(crate) fn affected_shapes(episode: &Episode) -> String {
    let shapes = episode.shapes.iter().take(SHOWN_NAMES).map(|shape| {
        let namespace = namespace(&shape.db, &shape.collection);
        format!(
            "{} {namespace} ({})",
            printable(&shape.command),
            count(float(shape.operations))
        )
    });
    shapes.collect::<Vec<_>>().join(", ")
}

/// The compared periods, and a table of the changes. `against` is the name of the baseline. If the
/// periods were not compared, the reason replaces the table.
pub(crate) fn changes(changes: &Changes, against: &str) -> Vec<String> {
    let against = printable(&against.replace('_', " "));
    let mut lines = vec![format!("now compared with {against}")];
    lines.extend(periods(changes));
    if let Some(reason) = changes.incomparable() {
        lines.push(format!("not compared: {}", printable(reason)));
        return lines;
    }
    if changes.changes.is_empty() {
        lines.push("nothing changed".to_owned());
        return lines;
    }
    let row = |change: &Change| {
        let shape = &change.shape;
        vec![
            printable(&change.kind.replace('_', " ")),
            format!("{:+.1} ms/s", change.cost_ms_per_second),
            change.times().map_or("–".to_owned(), ratio),
            before_and_now(change).join(" → "),
            change
                .share_of_pairs()
                .map_or("–".to_owned(), |share| percent(share, 1.0)),
            printable(shape.command()),
            namespace(shape.db(), shape.collection()),
            printable(shape.text()),
        ]
    };
    let rows: Vec<_> = changes.changes.iter().map(row).collect();
    let headings = [
        "<change",
        "cost",
        "ratio",
        "before → now",
        "effect",
        "<command",
        "<namespace",
        "<shape",
    ];
    lines.extend(table(&headings, &rows));
    lines
}

/// The two periods that were compared, if the proxy reports them.
pub(crate) fn periods(changes: &Changes) -> Option<String> {
    let period = |span: &Span| {
        let known = seconds(span.seconds);
        format!(
            "{} to {} UTC (data for {known})",
            moment(span.from),
            moment(span.to)
        )
    };
    let now = changes.now.as_ref().filter(|now| now.to > 0.0)?;
    let baseline = changes.baseline.as_ref();
    let baseline = baseline.map_or_else(|| period(&Span::default()), period);
    let now = period(now);
    Some(format!("baseline {baseline}, now {now}"))
}

/// The figure that changed, as text: its values in the earlier and in the later period.
pub(crate) fn before_and_now(change: &Change) -> [String; 2] {
    [change.before, change.now].map(|rates| match change.kind.as_str() {
        "slower" | "faster" => format!("p50 {}", millis(rates.p50_ms)),
        "heavier_replies" | "heavier_requests" => {
            format!("{}/op", bytes(rates.bytes_per_operation))
        }
        "more_documents" => format!("{} docs/op", count(rates.documents_per_operation)),
        _ => format!("{}/s", count(rates.per_second)),
    })
}

/// A table of the pools and their users, then a table of the concurrency limits, if reported.
pub(crate) fn pools(pools: &[Pool]) -> Vec<String> {
    let mut rows = Vec::new();
    for pool in pools {
        let server = printable(&pool.server);
        let states = [pool.pending, pool.available, pool.in_use, pool.wait_queue];
        let whole = [server.clone(), "(all)".to_owned(), printable(&pool.state)];
        rows.push(
            whole
                .into_iter()
                .chain(states.map(|n| n.to_string()))
                .collect(),
        );
        for user in &pool.users {
            let name = format!("{}@{}", printable(&user.name), printable(&user.source));
            let states = [user.pending, user.available, user.in_use, user.wait_queue];
            let names = [server.clone(), name, String::new()];
            rows.push(
                names
                    .into_iter()
                    .chain(states.map(|n| n.to_string()))
                    .collect(),
            );
        }
    }
    if rows.is_empty() {
        return vec!["no pool".to_owned()];
    }
    let headings = [
        "<server",
        "<user",
        "<state",
        "pending",
        "available",
        "in use",
        "wait queue",
    ];
    let mut lines = table(&headings, &rows);
    let limits = limits(pools);
    if !limits.is_empty() {
        lines.push(String::new());
        lines.extend(limits);
    }
    lines
}

/// A table of the servers' concurrency limits. The line below a server's row has the reason for the
/// last decision on its limit. Empty if the proxy does not report limits.
fn limits(pools: &[Pool]) -> Vec<String> {
    let is_reported = |pool: &&Pool| !pool.concurrency.mode.is_empty();
    let pools: Vec<_> = pools.iter().filter(is_reported).collect();
    if pools.is_empty() {
        return Vec::new();
    }
    let row = |pool: &&Pool| {
        let concurrency = &pool.concurrency;
        vec![
            printable(&pool.server),
            printable(&concurrency.mode),
            limit(concurrency),
            concurrency.in_progress.to_string(),
            concurrency.reserved.to_string(),
            concurrency.exempt.to_string(),
            concurrency.waiting.to_string(),
        ]
    };
    let rows: Vec<_> = pools.iter().map(row).collect();
    let headings = [
        "<server",
        "<mode",
        "limit",
        "in progress",
        "reserved",
        "exempt",
        "waiting",
    ];
    let mut table = table(&headings, &rows).into_iter();
    let mut lines: Vec<_> = table.next().into_iter().collect();
    for (line, pool) in table.zip(pools) {
        lines.push(line);
        // The reason has a line of its own, because a row with the reason would not fit in a
        // terminal of 80 columns.
        if let Some(reason) = &pool.concurrency.reason {
            lines.push(format!("  last decision: {}", printable(reason)));
        }
    }
    lines
}

/// The concurrency limit of a server as text: `none` if there is no limit, a dash if the proxy does
/// not report limits.
pub(crate) fn limit(concurrency: &Concurrency) -> String {
    match concurrency.limit {
        Some(limit) => limit.to_string(),
        None if concurrency.mode.is_empty() => "–".to_owned(),
        None => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::model::tests::model;

    #[test]
    fn recurring_stall_shows_its_period_its_slow_phase_and_the_server_counter_that_changed() {
        let model = model();
        let lines = stalls(&model.stalls, SINCE_START);
        assert_eq!(
            lines[1],
            "recurs every 60 s for 3 s on db1.example.net:27017, 9 times, in phase server, \
             with wiredTiger.checkpoint.bytes"
        );
        assert!(
            lines[3].contains("checkpoint.bytes 35 MiB (otherwise 0 B)"),
            "{}",
            lines[3]
        );
        assert!(
            lines
                .iter()
                .any(|line| line.contains("2 pulses without a reply"))
        );
    }

    #[test]
    fn reconnect_storms_and_stalls_show_which_of_several_instances_reported_them() {
        use seawall_api::Merge;

        let mut model = model();
        let alone = [
            storms(&model.storms, SINCE_START),
            stalls(&model.stalls, SINCE_START),
        ]
        .concat();
        assert!(!alone.concat().contains("reported by"));
        let instance = "http://10.0.0.1:9909";
        model.storms.set_instance(instance);
        model.stalls.set_instance(instance);
        let lines = storms(&model.storms, SINCE_START);
        assert!(lines[0].ends_with("reported by") && lines[1].ends_with(instance));
        let lines = stalls(&model.stalls, SINCE_START);
        assert!(lines[1].ends_with(", reported by http://10.0.0.1:9909"));
        assert!(lines[2].ends_with("reported by") && lines[3].ends_with(instance));
    }

    #[test]
    fn recurring_stall_without_a_known_counter_says_that_no_counter_is_known() {
        let mut recurring = model().stalls.recurring[0].clone();
        recurring.counter = None;
        assert!(recurrence(&recurring).ends_with("no counter known"));
    }

    /// The *pulse* regularly samples the counters of `serverStatus`.
    #[test]
    fn recurring_stall_is_shown_with_a_note_if_the_pulse_got_no_reply() {
        let mut recurring = model().stalls.recurring[0].clone();
        recurring.counter = None;
        recurring.unanswered = true;
        recurring.server = None;
        let text = recurrence(&recurring);
        assert!(text.contains("on all servers") && text.ends_with("no reply to the pulse"));
    }

    #[test]
    fn each_change_of_a_shape_is_shown_with_the_earlier_and_the_later_value() {
        let lines = changes(&model().changes, "last_week");
        assert_eq!(lines[0], "now compared with last week");
        assert!(lines[2].contains("p50 900 µs → p50 4.2 ms"), "{}", lines[2]);
        assert!(lines[3].contains("0/s → 12/s"), "{}", lines[3]);
        assert!(lines[4].contains("420 B/op → 1.05 KiB/op"), "{}", lines[4]);
    }

    #[test]
    fn if_the_earlier_period_has_no_data_the_pane_of_changes_says_why_there_is_no_comparison() {
        let span = |from, to, seconds| {
            Some(Span {
                from,
                seconds,
                to,
                ..Span::default()
            })
        };
        let missing = Changes {
            baseline: span(1_795_197_000.0, 1_795_197_600.0, 0.0),
            comparable: Some(false),
            now: span(1_795_283_400.0, 1_795_284_000.0, 600.0),
            reason: Some("no data for the baseline".to_owned()),
            ..Changes::default()
        };
        let expected = [
            "now compared with yesterday",
            "baseline 2026-11-20 17:50:00 to 2026-11-20 18:00:00 UTC (data for 0), \
             now 2026-11-21 17:50:00 to 2026-11-21 18:00:00 UTC (data for 10 min)",
            "not compared: no data for the baseline",
        ];
        assert_eq!(changes(&missing, "yesterday"), expected);
    }

    #[test]
    fn stall_that_no_longer_recurs_shows_when_it_was_last_seen() {
        let mut recurring = model().stalls.recurring[0].clone();
        assert!(recurs(&recurring).starts_with("recurs every 60 s"));
        recurring.current = Some(false);
        let text = recurs(&recurring);
        assert!(text.starts_with("recurred every 60 s"), "{text}");
        assert!(text.contains("; last seen 2026-11-21 "), "{text}");
    }

    /// The *pulse* regularly samples the counters of `serverStatus`.
    #[test]
    fn pulse_text_ends_with_the_note_from_the_api() {
        let mut noted = model().stalls.pulse;
        noted.note = Some("routers have none".to_owned());
        assert!(pulse(&noted).ends_with("; routers have none"));
    }

    #[test]
    fn empty_panes_say_that_there_is_nothing_to_show() {
        let no_storm = storms(&Storms::default(), SINCE_START);
        assert_eq!(no_storm, ["no storm since the start"]);
        assert!(stalls(&Stalls::default(), "").contains(&"no stall".to_owned()));
        assert!(changes(&Changes::default(), "1h").contains(&"nothing changed".to_owned()));
        assert_eq!(pools(&[]), ["no pool"]);
    }

    #[test]
    fn pools_show_each_user_under_its_server() {
        let lines = pools(&model().pools.pools);
        let limits = lines.iter().position(String::is_empty).unwrap();
        assert_eq!(limits, 7);
        assert!(lines[1].contains("(all)") && lines[2].contains("shop@admin"));
    }

    #[test]
    fn concurrency_limits_and_their_reasons_fit_80_columns() {
        let expected = [
            "server                 mode  limit  in progress  reserved  exempt  waiting",
            "db1.example.net:27017  auto     12            6         0       1        0",
            "  last decision: operations take many times as long as without load",
            "db2.example.net:27017  auto      6            6         3       0        2",
            "  last decision: trying another limit",
        ];
        let mut pools = model().pools.pools;
        pools[1].concurrency.reserved = 3;
        assert_eq!(limits(&pools), expected);
        for line in expected {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn a_limit_that_is_not_reported_is_shown_as_a_dash_and_a_disabled_limit_as_none() {
        let mut pools = model().pools.pools;
        pools[0].concurrency = Concurrency {
            mode: "off".to_owned(),
            ..Concurrency::default()
        };
        pools[1].concurrency = Concurrency::default();
        assert_eq!(limit(&pools[1].concurrency), "–");
        let lines = limits(&pools);
        assert_eq!(lines.len(), 2);
        assert!(lines[1].contains("off    none"), "{}", lines[1]);
        pools.remove(0);
        assert_eq!(super::pools(&pools).len(), 4);
    }
}
