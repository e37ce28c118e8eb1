//! A report as one self-contained HTML page: no script, no external resource.

use super::{
    page::{Cells, escape, key_figures, page, section, warnings},
    plot::{self, Band, Series, Time},
    scale::Axis,
    shapes, text,
};
use crate::{
    figures::{count, exact, float, millis, moment, seconds, uptime},
    top::panes,
};
use seawall_api::{Pool, Report, Stalls, Step, Storms};

pub(super) fn report(report: &Report) -> String {
    let status = &report.status;
    let mut body = format!(
        "<h1>Seawall report</h1>\n<p>{}</p>\n<p class=\"soft\">seawall {}, {}, {}, up {}</p>\n",
        escape(&text::period(report)),
        escape(&status.version),
        escape(&status.mode),
        escape(&status.deployment),
        uptime(status.uptime_seconds),
    );
    for instance in text::instances(report) {
        body.push_str(&format!("<p class=\"soft\">{}</p>\n", escape(&instance)));
    }
    body.push_str(&warnings(&text::warnings(report)));
    let mut figures = text::summary(report);
    let (stalls, storms) = (report.stalls.episodes.len(), report.storms.storms.len());
    figures.push(("stalls", stalls.to_string(), again(&report.stalls)));
    figures.push(("connection storms", storms.to_string(), String::new()));
    body.push_str(&key_figures(&figures));
    section(&mut body, "Timeline", &timeline(report));
    section(&mut body, "Heaviest shapes", &shapes::heaviest(report));
    section(&mut body, "Servers", &servers(report));
    section(&mut body, "Stalls", &stalls_of(&report.stalls));
    section(&mut body, "Connection storms", &storms_of(&report.storms));
    section(
        &mut body,
        &format!(
            "Changes against {}",
            report.changes.against.replace('_', " ")
        ),
        &shapes::changes(&report.changes, |_| None),
    );
    section(&mut body, "Pools at the end", &pools(&report.pools));
    let title = format!("Seawall report {} UTC", moment(report.made_at));
    page(&title, &body)
}

fn again(stalls: &Stalls) -> String {
    let recurring = stalls.recurring.iter().find(|of| of.is_current());
    recurring.map_or(String::new(), |again| {
        format!("every {}", seconds(again.period_seconds))
    })
}

fn timeline(report: &Report) -> String {
    let step = report.timeline.step_seconds.max(1e-3);
    let steps = &report.timeline.steps;
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        return "<p>No step was recorded.</p>".to_owned();
    };
    let time = Time {
        from: first.at,
        to: last.at + step,
        steps: steps.iter().map(|at| at.at + step / 2.0).collect(),
        bands: bands(report, first.at, last.at + step),
    };
    let line = |name, class, value: &dyn Fn(&Step) -> Option<f64>| Series {
        name,
        class,
        values: steps.iter().map(value).collect(),
    };
    // A step without data has no rate.
    let per_second = |s: &Step, of: u64| (s.seconds > 0.0).then(|| float(of) / s.seconds);
    let rate = line("operations", "one", &|s| per_second(s, s.count));
    // A step without operations has no latency.
    let p50 = line("p50", "one", &|s| (s.count > 0).then_some(s.latency_ms.p50));
    let p99 = line("p99", "two", &|s| (s.count > 0).then_some(s.latency_ms.p99));
    let errors = line("errors", "bad", &|s| per_second(s, s.errors));
    let steps_of = format!("steps of {}", seconds(step));
    let mut html = plot::over_time(
        "Operations",
        &format!("per second, in {steps_of}"),
        &time,
        Axis::Linear,
        &[rate],
    );
    let unit = "of each step, logarithmic";
    html.push_str(&plot::over_time(
        "Duration",
        unit,
        &time,
        Axis::Logarithmic,
        &[p50, p99],
    ));
    if steps.iter().any(|step| step.errors > 0) {
        html.push_str(&plot::over_time(
            "Errors",
            "per second",
            &time,
            Axis::Linear,
            &[errors],
        ));
    } else {
        html.push_str("<p class=\"soft\">No errors in this period.</p>\n");
    }
    if !time.bands.is_empty() {
        html.push_str(
            "<p><span class=\"key stall\">stall</span><span class=\"key storm\">connection storm</span></p>\n",
        );
    }
    html
}

/// The stalls and storms that overlap the timeline.
fn bands(report: &Report, from: f64, to: f64) -> Vec<Band> {
    let stalls = report.stalls.episodes.iter().map(|episode| Band {
        from: episode.started_at,
        to: episode.started_at + episode.seconds,
        class: "stall",
        title: format!(
            "stall on {} for {}",
            panes::server(episode.server.as_deref()),
            seconds(episode.seconds)
        ),
    });
    let storms = report.storms.storms.iter().map(|storm| Band {
        from: storm.started_at,
        to: storm.ended_at.unwrap_or(to),
        class: "storm",
        title: format!(
            "connection storm: {} connects",
            count(float(storm.arrivals))
        ),
    });
    let is_inside = |band: &Band| band.to >= from && band.from <= to;
    storms.chain(stalls).filter(is_inside).collect()
}

fn servers(report: &Report) -> String {
    if report.servers.is_empty() {
        return "<p>No server replied.</p>".to_owned();
    }
    let mut cells = Cells::new(&[
        "<server",
        "operations",
        "errors",
        "p50",
        "p90",
        "p99",
        "longest",
    ]);
    for server in &report.servers {
        cells.text(&server.address);
        cells.number(&exact(server.count));
        cells.number(&exact(server.errors));
        let latency = server.latency_ms;
        for ms in [latency.p50, latency.p90, latency.p99, latency.max] {
            cells.number(&millis(ms));
        }
        cells.end_row();
    }
    cells.table("")
}

fn stalls_of(stalls: &Stalls) -> String {
    let mut html = String::new();
    for recurring in &stalls.recurring {
        let text = escape(&panes::recurs(recurring));
        let class = match recurring.is_current() {
            true => "warning",
            false => "soft",
        };
        html.push_str(&format!("<p class=\"{class}\">A stall {text}.</p>\n"));
    }
    let pulse = escape(&panes::pulse(&stalls.pulse));
    html.push_str(&format!(
        "<p class=\"soft\">Pulse (samples of serverStatus): {pulse}.</p>\n"
    ));
    if stalls.episodes.is_empty() {
        return html + "<p>None.</p>";
    }
    let mut cells = Cells::new(&[
        "<began",
        "length",
        "<server",
        "operations",
        "total wait",
        "<phase",
        "usual p99",
        "worst",
        "<server counters",
        "<affected shapes",
    ]);
    for episode in &stalls.episodes {
        cells.marked("t", &began(episode.started_at));
        cells.number(&seconds(episode.seconds));
        cells.text(&panes::server(episode.server.as_deref()));
        cells.number(&exact(episode.operations));
        cells.number(&millis(episode.waited_ms));
        cells.text(&episode.phase);
        cells.number(&millis(episode.usual_p99_ms));
        cells.number(&millis(episode.worst_ms));
        cells.text(&panes::moved(episode));
        cells.text(&panes::affected_shapes(episode));
        cells.end_row();
    }
    html + &cells.table("wide")
}

/// A moment in two lines: time of day, date.
fn began(at: f64) -> String {
    let moment = moment(at);
    let (day, clock) = moment.split_once(' ').unwrap_or(("", &moment));
    format!("{}<br><small>{}</small>", escape(clock), escape(day))
}

fn storms_of(storms: &Storms) -> String {
    if storms.storms.is_empty() {
        return "<p>None.</p>".to_owned();
    }
    let mut cells = Cells::new(&[
        "<began",
        "length",
        "connects",
        "peak per second",
        "usual per second",
        "server connections opened",
        "connections absorbed",
        "<applications",
    ]);
    for storm in &storms.storms {
        let length = storm.ended_at.map(|end| seconds(end - storm.started_at));
        cells.marked("t", &began(storm.started_at));
        cells.number(&length.unwrap_or("ongoing".to_owned()));
        cells.number(&exact(storm.arrivals));
        cells.number(&count(storm.peak_arrivals_per_second));
        cells.number(&count(storm.usual_short_lived_per_second));
        cells.number(&exact(storm.server_connections_created));
        cells.number(&exact(storm.server_connections_absorbed));
        cells.text(&panes::names(&storm.applications));
        cells.end_row();
    }
    cells.table("wide")
}

fn pools(pools: &[Pool]) -> String {
    if pools.is_empty() {
        return "<p>None.</p>".to_owned();
    }
    let mut cells = Cells::new(&[
        "<server",
        "<user",
        "<state",
        "pending",
        "available",
        "in use",
        "wait queue",
        "limit",
    ]);
    let mut row = |names: [&str; 3], figures: [u64; 4], limit: &str| {
        names.iter().for_each(|name| cells.text(name));
        figures
            .iter()
            .for_each(|figure| cells.number(&exact(*figure)));
        cells.number(limit);
        cells.end_row();
    };
    for pool in pools {
        let figures = [pool.pending, pool.available, pool.in_use, pool.wait_queue];
        let limit = panes::limit(&pool.concurrency);
        row([&pool.server, "all", &pool.state], figures, &limit);
        for user in &pool.users {
            let name = format!("{}@{}", user.name, user.source);
            let figures = [user.pending, user.available, user.in_use, user.wait_queue];
            row(["", &name, ""], figures, "");
        }
    }
    cells.table("")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::tests::example, *};
    use seawall_api::Concurrency;

    /// Adds markup to every string value, as a hostile name could contain it.
    fn poisoned(value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(format!("{text}\"'><script>&\u{1b}")),
            Value::Array(items) => items.into_iter().map(poisoned).collect(),
            Value::Object(members) => {
                let members = members.into_iter();
                Value::Object(members.map(|(key, value)| (key, poisoned(value))).collect())
            }
            other => other,
        }
    }

    #[test]
    fn markup_in_names_is_escaped_everywhere() {
        let html = report(&Report::read(poisoned(example())).unwrap());
        assert!(html.contains("&lt;script&gt;"));
        assert!(!html.contains("<script") && !html.contains("'><"));
        assert!(!html.contains('\u{1b}'));
        // Every attribute is closed: otherwise a tag would have an odd number of quotes.
        let body = html.split_once("</head>").unwrap().1;
        for tag in body.split('<').skip(1) {
            let tag = tag.split('>').next().unwrap();
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        }
    }

    #[test]
    fn page_loads_no_external_resource() {
        let html = report(&Report::read(example()).unwrap());
        for outside in [
            "http:", "https:", "src=", "href=", "@import", "url(", "<script",
        ] {
            assert!(!html.contains(outside), "{outside}");
        }
        let plots = html.matches("<figure>").count();
        assert_eq!(plots, 3);
        for part in [
            "Operations",
            "Heaviest shapes",
            "Stalls",
            "Pools at the end",
            "prefers-color-scheme",
        ] {
            assert!(html.contains(part), "{part}");
        }
        assert!(!html.contains("NaN") && !html.contains("inf%"));
    }

    #[test]
    fn pools_show_the_concurrency_limit_of_their_server() {
        let mut pools_at_the_end = Report::read(example()).unwrap().pools;
        let limits = |html: &str, limit: &str| {
            let cell = format!("<td class=\"n\" data-label=\"limit\">{limit}</td>");
            html.matches(&cell).count()
        };
        let html = pools(&pools_at_the_end);
        assert_eq!((limits(&html, "12"), limits(&html, "6")), (1, 1), "{html}");
        assert_eq!(limits(&html, ""), 4, "{html}");
        pools_at_the_end[0].concurrency = Concurrency::default();
        assert_eq!(limits(&pools(&pools_at_the_end), "–"), 1);
    }

    #[test]
    fn every_section_of_an_empty_report_says_that_it_is_empty() {
        let html = report(&Report::default());
        for part in [
            "No step was recorded",
            "No operation in this period",
            "Nothing changed",
        ] {
            assert!(html.contains(part), "{part}");
        }
        assert!(!html.contains("NaN"));
    }

    #[test]
    fn every_opened_tag_is_closed() {
        let html = report(&Report::read(example()).unwrap());
        for tag in [
            "table", "tr", "td", "div", "svg", "figure", "section", "span", "dl", "p", "rect",
        ] {
            let opened = html.matches(&format!("<{tag} ")).count()
                + html.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
