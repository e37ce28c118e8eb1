//! The past in JSON: periods of shapes, timelines, changes, stalls, and all of it as one report.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json,
    extract::{Path, Query, State},
    http::StatusCode,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Window, json as shown, refused, work};
use crate::{
    history::{Change, Figures, Label, Period, TIERS},
    observe::ShapeRow,
    sight::{Changes, RecurringStall, Sight, Stall},
};

type Answer = Result<Json<Value>, (StatusCode, String)>;

/// Of a request that does not say.
const DEFAULT_SINCE: Duration = Duration::from_secs(600);

/// Steps in an answer at most: ten minutes of seconds, or a week of ten minutes.
const MAX_STEPS: u64 = 1_200;

/// How far back is kept.
const WEEK: Duration = Duration::from_secs(7 * 86_400);

const DAY: Duration = Duration::from_secs(86_400);

/// What two periods of a comparison are long unless told.
const DEFAULT_WINDOW: Duration = Duration::from_secs(600);

/// How long seconds are kept.
const FINE: Duration = Duration::from_secs(600);

/// Shapes in a report.
const REPORTED_SHAPES: usize = 50;

#[derive(Deserialize)]
pub(super) struct Asked {
    since: Option<String>,
    step: Option<String>,
    shape: Option<String>,
    server: Option<String>,
    sort: Option<String>,
    limit: Option<usize>,
    against: Option<String>,
    window: Option<String>,
}

impl Asked {
    fn since(&self) -> Result<Option<Duration>, (StatusCode, String)> {
        self.since.as_deref().map(duration).transpose()
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
            .unwrap_or(super::DEFAULT_LIMIT)
            .min(super::MAX_LIMIT)
    }
}

/// A number with `s`, `m`, `h` or `d`.
fn duration(text: &str) -> Result<Duration, (StatusCode, String)> {
    let wrong = || {
        refused(format!(
            "{text:?} is not a time such as 30s, 10m, 24h or 7d"
        ))
    };
    let unit = text.char_indices().next_back().ok_or_else(wrong)?;
    let number: u64 = text
        .get(..unit.0)
        .and_then(|number| number.parse().ok())
        .ok_or_else(wrong)?;
    let seconds = match unit.1 {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let time = Duration::from_secs(number.saturating_mul(seconds));
    if time.is_zero() || time > WEEK {
        return Err(refused(format!("{text:?} is not from 1s to 7d")));
    }
    Ok(time)
}

fn need_history(sight: &Sight) -> Result<(), (StatusCode, String)> {
    match sight.is_on() {
        true => Ok(()),
        false => Err((
            StatusCode::NOT_FOUND,
            "the history is off: history.enabled\n".to_owned(),
        )),
    }
}

fn ago(now: SystemTime, time: Duration) -> SystemTime {
    now.checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(super) async fn shapes(
    State(window): State<Arc<Window>>,
    Query(asked): Query<Asked>,
) -> Answer {
    let sort = asked
        .sort
        .clone()
        .unwrap_or_else(|| "total_time".to_owned());
    let limit = asked.limit();
    let wrong = || refused("sort by total_time, count, errors, bytes, documents or p99".to_owned());
    let Some(since) = asked.since()? else {
        let rows = work(&window, move |window| {
            let mut rows = window.observer.shapes();
            shown::sort_shapes(&mut rows, &sort)?;
            rows.truncate(limit);
            Some(rows)
        });
        let rows = rows.await?.ok_or_else(wrong)?;
        let shapes: Vec<_> = rows.iter().map(shown::shape).collect();
        return Ok(Json(json!({ "shapes": shapes })));
    };
    need_history(&window.sight)?;
    let value = work(&window, move |window| {
        let now = SystemTime::now();
        let period = window.sight.period(ago(now, since), now);
        let known = window.observer.shapes();
        shapes_of(&period, &known, &sort, limit, false)
    });
    Ok(Json(value.await?.ok_or_else(wrong)?))
}

/// The shapes of a period, sorted; `None` for an unknown key.
fn shapes_of(
    period: &Period,
    known: &[ShapeRow],
    sort: &str,
    limit: usize,
    is_full: bool,
) -> Option<Value> {
    let mut rows: Vec<_> = period
        .series
        .iter()
        .filter(|(label, _)| matches!(***label, Label::Shape { .. }))
        .collect();
    sort_figures(&mut rows, sort)?;
    let none = Figures::default();
    let other = period.series.get(&Label::OtherShapes).unwrap_or(&none);
    let mut rest = other.clone();
    rows.iter()
        .skip(limit)
        .for_each(|(_, figures)| rest.merge(figures));
    let known: HashMap<String, &ShapeRow> = known
        .iter()
        .map(|row| (row.shape.id.to_string(), row))
        .collect();
    let shapes = rows.iter().take(limit).map(|(label, figures)| {
        let mut shape = named(label);
        add_figures(&mut shape, figures, is_full);
        let id = shape.get("id").and_then(Value::as_str);
        if let Some(row) = id.and_then(|id| known.get(id)) {
            shape.insert(
                "first_seen".to_owned(),
                json!(shown::since_epoch(row.first_seen)),
            );
            shape.insert(
                "last_seen".to_owned(),
                json!(shown::since_epoch(row.last_seen)),
            );
        }
        Value::Object(shape)
    });
    let shapes: Vec<_> = shapes.collect();
    Some(json!({
        "since_seconds": period.length.as_secs(),
        "shapes": shapes,
        "other": {
            "count": rest.count, "errors": rest.errors, "total_time_ms": shown::millis(rest.durations.sum()),
        },
    }))
}

fn sort_figures(rows: &mut [(&Arc<Label>, &Figures)], key: &str) -> Option<()> {
    match key {
        "total_time" => rows.sort_by_cached_key(|(_, f)| Reverse(f.load())),
        "count" => rows.sort_by_key(|(_, f)| Reverse(f.count)),
        "errors" => rows.sort_by_key(|(_, f)| Reverse(f.errors)),
        "documents" => rows.sort_by_key(|(_, f)| Reverse(f.documents)),
        "p99" => rows.sort_by_cached_key(|(_, f)| Reverse(f.durations.quantile(0.99))),
        "bytes" => rows.sort_by_key(|(_, f)| Reverse(f.request_bytes + f.reply_bytes)),
        _ => return None,
    }
    Some(())
}

/// What a series is of, by the names of a shape.
fn named(label: &Label) -> Map<String, Value> {
    let pairs: Vec<(&str, &str)> = match label {
        Label::Shape {
            level,
            id,
            command,
            db,
            collection,
            text,
        } => vec![
            ("level", level.as_str()),
            ("id", id),
            ("command", command),
            ("db", db),
            ("collection", collection),
            ("shape", text),
        ],
        Label::Namespace {
            command,
            db,
            collection,
        } => vec![("command", command), ("db", db), ("collection", collection)],
        Label::Server(address) => vec![("address", address)],
        Label::Whole => vec![("shape", "all operations")],
        Label::OtherShapes | Label::OtherNamespaces => vec![("shape", "other")],
    };
    let pairs = pairs.into_iter();
    pairs
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect()
}

fn add_figures(fields: &mut Map<String, Value>, figures: &Figures, is_full: bool) {
    let plain = json!({
        "count": figures.count,
        "errors": figures.errors,
        "total_time_ms": shown::millis(figures.durations.sum()),
        "latency_ms": shown::latency(&figures.durations),
        "phases_ms": shown::phases(&figures.phases),
        "request_bytes": figures.request_bytes,
        "reply_bytes": figures.reply_bytes,
        "documents": figures.documents,
        "more": {
            "count": figures.more_count, "total_time_ms": shown::millis(figures.more_time),
        },
    });
    if let Value::Object(plain) = plain {
        fields.extend(plain);
    }
    if is_full {
        let distribution = shown::distribution(&figures.durations);
        fields.insert("distribution".to_owned(), distribution);
    }
}

pub(super) async fn shape(
    State(window): State<Arc<Window>>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Answer {
    let is_whole = asked.since.is_none();
    if !is_whole {
        need_history(&window.sight)?;
    }
    let since = asked.since()?.unwrap_or(DEFAULT_SINCE);
    let value = work(&window, move |window| {
        let rows = window.observer.shapes();
        let row = rows.iter().find(|row| row.shape.id.to_string() == id);
        let now = SystemTime::now();
        let period = window.sight.period(ago(now, since), now);
        let in_period = period
            .series
            .iter()
            .find(|(label, _)| matches!(&***label, Label::Shape { id: of, .. } if **of == *id));
        let mut shape = match (row, in_period) {
            (Some(row), _) => match shown::shape(row) {
                Value::Object(shape) => shape,
                _ => Map::new(),
            },
            (None, Some((label, _))) => named(label),
            (None, None) => return None,
        };
        let none = Figures::default();
        let figures = match row {
            Some(row) if is_whole => &row.sums.figures,
            Some(_) | None => in_period.map_or(&none, |(_, figures)| figures),
        };
        add_figures(&mut shape, figures, true);
        if let Some((label, _)) = in_period {
            let step = step_for(since);
            let timeline = window.sight.timeline(ago(now, since), now, step, label);
            shape.insert("timeline".to_owned(), steps(&timeline, label, false));
        }
        Some(Value::Object(shape))
    });
    let shape = value.await?;
    let shape = shape.ok_or((StatusCode::NOT_FOUND, "no such shape\n".to_owned()))?;
    Ok(Json(shape))
}

/// Some 120 steps, of a length that is kept.
fn step_for(since: Duration) -> Duration {
    let seconds = match since.as_secs() / 120 {
        0..=4 => since.as_secs().div_ceil(120).max(1),
        5..=29 => 10,
        30..=299 => 60,
        _ => 600,
    };
    Duration::from_secs(seconds)
}

pub(super) async fn timeline(
    State(window): State<Arc<Window>>,
    Query(asked): Query<Asked>,
) -> Answer {
    need_history(&window.sight)?;
    let since = asked.since()?.unwrap_or(DEFAULT_SINCE);
    let step = match asked.step.as_deref() {
        Some(step) => duration(step)?,
        None => step_for(since),
    };
    if since.as_secs() / step.as_secs() > MAX_STEPS {
        return Err(refused(format!(
            "at most {MAX_STEPS} steps; choose a longer one"
        )));
    }
    let value = work(&window, move |window| {
        let now = SystemTime::now();
        let label = match (asked.shape, asked.server) {
            (Some(id), _) => {
                let period = window.sight.period(ago(now, since), now);
                let of = |label: &&Arc<Label>| matches!(&***label, Label::Shape { id: of, .. } if **of == *id);
                period.series.keys().find(of).map(Arc::clone)?
            }
            (None, Some(server)) => Arc::new(Label::Server(server.into())),
            (None, None) => Arc::new(Label::Whole),
        };
        let timeline = window.sight.timeline(ago(now, since), now, step, &label);
        Some(json!({ "step_seconds": step.as_secs(), "steps": steps(&timeline, &label, true) }))
    });
    let value = value.await?;
    value
        .map(Json)
        .ok_or((StatusCode::NOT_FOUND, "no such shape\n".to_owned()))
}

fn steps(timeline: &[(u64, Period)], label: &Label, is_full: bool) -> Value {
    let none = Figures::default();
    let steps = timeline.iter().map(|(start, period)| {
        let figures = period.series.get(label).unwrap_or(&none);
        let mut step = Map::new();
        step.insert("at".to_owned(), json!(start));
        step.insert("seconds".to_owned(), json!(period.length.as_secs()));
        add_figures(&mut step, figures, is_full);
        let durations = &figures.durations;
        let flat = [
            ("p50_ms", durations.quantile(0.5)),
            ("p99_ms", durations.quantile(0.99)),
            ("max_ms", durations.max()),
        ];
        let flat = flat.map(|(name, time)| (name.to_owned(), json!(shown::millis(time))));
        step.extend(flat);
        Value::Object(step)
    });
    Value::Array(steps.collect())
}

pub(super) async fn changes(
    State(window): State<Arc<Window>>,
    Query(asked): Query<Asked>,
) -> Answer {
    need_history(&window.sight)?;
    let length = asked
        .window
        .as_deref()
        .map_or(Ok(DEFAULT_WINDOW), duration)?;
    let against = asked.against.unwrap_or_else(|| "yesterday".to_owned());
    let back = baseline(&against)?;
    let changes = work(&window, move |window| {
        window_changes(&window.sight, back, length)
    });
    Ok(Json(changes_value(&changes.await?, &against)))
}

/// How long ago the baseline ended that is asked for by name, or as a time.
fn baseline(against: &str) -> Result<Duration, (StatusCode, String)> {
    match against {
        "yesterday" => Ok(DAY),
        "last_week" => Ok(WEEK - DEFAULT_WINDOW),
        time => duration(time),
    }
}

/// The last so long against as long a time before.
fn window_changes(sight: &Sight, back: Duration, length: Duration) -> Changes {
    let now = SystemTime::now();
    let back = back.max(length);
    let then = ago(now, back);
    // Of long ago only long steps are known: the baseline is one of these at least. Rates are of each one's own length.
    let kept = TIERS
        .iter()
        .find(|(_, kept)| (back + length).as_secs() <= *kept);
    let step = kept.map_or(0, |(step, _)| *step);
    let before = length.max(Duration::from_secs(step * 2));
    sight.changes((ago(then, before), then), (ago(now, length), now))
}

fn changes_value(changes: &Changes, against: &str) -> Value {
    let period = |period: &Period| {
        let whole = crate::sight::whole(period);
        json!({ "seconds": period.length.as_secs(), "count": whole.count })
    };
    let (before, now) = (&changes.before, &changes.now);
    let all = changes.changes.iter();
    json!({
        "against": against,
        "baseline": period(before),
        "now": period(now),
        "changes": all.map(|c| change(c, before, now)).collect::<Vec<_>>(),
    })
}

#[expect(clippy::as_conversions, reason = "counts far under 2^53")]
fn change(change: &Change, before: &Period, now: &Period) -> Value {
    let side = |figures: &Figures, period: &Period| {
        let seconds = period.length.as_secs_f64().max(1.0);
        let count = (figures.count as f64).max(1.0);
        json!({
            "count": figures.count,
            "per_second": figures.count as f64 / seconds,
            "p50_ms": shown::millis(figures.durations.quantile(0.5)),
            "p99_ms": shown::millis(figures.durations.quantile(0.99)),
            "total_time_ms_per_second": shown::millis(figures.durations.sum()) / seconds,
            "bytes_per_operation": (figures.request_bytes + figures.reply_bytes) as f64 / count,
            "documents_per_operation": figures.documents as f64 / count,
        })
    };
    let mut shape = named(&change.label);
    if let Some(text) = shape.remove("shape") {
        shape.insert("text".to_owned(), text);
    }
    json!({
        "kind": change.kind.as_str(),
        "shape": shape,
        "before": side(&change.before, before),
        "now": side(&change.now, now),
        "ratio": change.ratio,
        "effect": change.effect,
        "cost_ms_per_second": shown::millis(change.cost_per_second),
    })
}

pub(super) async fn stalls(State(window): State<Arc<Window>>) -> Answer {
    need_history(&window.sight)?;
    Ok(Json(work(&window, stalls_value).await?))
}

fn stalls_value(window: &Window) -> Value {
    let (episodes, recurring) = window.sight.stalls();
    let pulse = match window.sight.pulse() {
        Some(cost) => json!({
            "state": "on",
            "answered": cost.answered,
            "unanswered": cost.unanswered,
            "refused": cost.refused,
            "mean_ms": shown::millis(cost.total_time / u32::try_from(cost.answered.max(1)).unwrap_or(u32::MAX)),
            "longest_ms": shown::millis(cost.longest),
            "refusals": cost.refusals,
        }),
        None => json!({ "state": window.pulse_off }),
    };
    json!({
        "pulse": pulse,
        "episodes": episodes.iter().map(stall).collect::<Vec<_>>(),
        "recurring": recurring.iter().map(recurring_stall).collect::<Vec<_>>(),
    })
}

fn phase_name(phase: usize) -> Option<&'static str> {
    crate::observe::Phase::ALL
        .get(phase)
        .map(|phase| phase.as_str())
}

fn stall(stall: &Stall) -> Value {
    let episode = &stall.episode;
    let shapes = stall.shapes.iter().map(|waiting| {
        let mut shape = named(&waiting.label);
        if let Some(text) = shape.remove("shape") {
            shape.insert("text".to_owned(), text);
        }
        shape.insert("operations".to_owned(), json!(waiting.operations));
        Value::Object(shape)
    });
    let moved = stall.moved.iter().map(|moved| {
        json!({
            "counter": moved.counter, "during": moved.during, "otherwise": moved.otherwise, "score": moved.score,
        })
    });
    json!({
        "server": stall.server,
        "started_at": episode.started_at,
        "seconds": episode.length.as_secs_f64(),
        "operations": episode.operations,
        "waited_ms": shown::millis(episode.waited),
        "phase": phase_name(episode.phase),
        "usual_p99_ms": shown::millis(episode.usual),
        "worst_ms": shown::millis(episode.worst),
        "shapes": shapes.collect::<Vec<_>>(),
        "moved": moved.collect::<Vec<_>>(),
        "unanswered_pulses": stall.unanswered,
    })
}

fn recurring_stall(stall: &RecurringStall) -> Value {
    let recurrence = &stall.recurrence;
    json!({
        "server": stall.server,
        "period_seconds": recurrence.period.as_secs_f64(),
        "length_seconds": recurrence.length.as_secs_f64(),
        "times": recurrence.times,
        "last_at": recurrence.last_at,
        "phase": phase_name(recurrence.phase),
        "counter": stall.counter.as_ref().map(|moved| moved.counter),
        "unanswered": stall.is_unanswered,
    })
}

pub(super) async fn report(
    State(window): State<Arc<Window>>,
    Query(asked): Query<Asked>,
) -> Answer {
    need_history(&window.sight)?;
    let since = asked.since()?.unwrap_or(DEFAULT_SINCE);
    let status = super::status_value(&window);
    let pools = super::pools_value(&window);
    let storms = super::storms_value(&window);
    let value = work(&window, move |window| {
        let now = SystemTime::now();
        let period = window.sight.period(ago(now, since), now);
        let known = window.observer.shapes();
        let shapes = shapes_of(&period, &known, "total_time", REPORTED_SHAPES, true);
        // Stalls last seconds: in steps of ten they would be smeared.
        let step = if since <= FINE {
            Duration::from_secs(1)
        } else {
            step_for(since)
        };
        let timeline = window
            .sight
            .timeline(ago(now, since), now, step, &Label::Whole);
        let servers = period.series.iter().filter_map(|(label, figures)| {
            let Label::Server(_) = &**label else {
                return None;
            };
            let mut server = named(label);
            add_figures(&mut server, figures, false);
            Some(Value::Object(server))
        });
        let changes = window_changes(&window.sight, DAY, since);
        let mut report = json!({
            "seawall_report": 1,
            "made_at": shown::since_epoch(now),
            "since_seconds": period.length.as_secs(),
            "status": status,
            "timeline": { "step_seconds": step.as_secs(), "steps": steps(&timeline, &Label::Whole, true) },
            "servers": servers.collect::<Vec<_>>(),
            "storms": storms,
            "stalls": stalls_value(window),
            "changes": changes_value(&changes, "yesterday"),
        });
        if let (Value::Object(report), Some(Value::Object(shapes)), Value::Object(pools)) =
            (&mut report, shapes, pools)
        {
            report.extend(
                shapes
                    .into_iter()
                    .filter(|(name, _)| name != "since_seconds"),
            );
            report.extend(pools);
        }
        report
    });
    Ok(Json(value.await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_a_week_is_the_longest() {
        assert_eq!(duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("24h").unwrap(), DAY);
        assert_eq!(duration("7d").unwrap(), WEEK);
        for wrong in ["", "s", "10", "10x", "0s", "8d", "-1s", "1.5h", "\u{fc}"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn timelines_have_some_hundred_steps_of_a_kept_length() {
        let steps = |seconds: u64| step_for(Duration::from_secs(seconds)).as_secs();
        assert_eq!(
            [60, 120, 600, 3_600, 7_200, 86_400, 604_800].map(steps),
            [1, 1, 10, 60, 60, 600, 600]
        );
    }
}
