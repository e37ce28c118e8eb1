//! The report on a load, as JSON and as text.

use std::{fmt, time::Duration};

use serde::Serialize;

use super::{
    Behaviour, Plan,
    own::Share,
    record::{LoadStep, Record, Second, Tally, milliseconds},
};
use seawall_stats::{Distribution, float};

/// The results of a load.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    target: String,
    clients: usize,
    behaviour: &'static str,
    offered_per_second: Option<f64>,
    duration_s: f64,
    /// Operations with a correct reply, per second.
    goodput: f64,
    missed: u64,
    wrong: u64,
    steps: Vec<StepReport>,
    /// Latency of operations in milliseconds, measured from the time when they were due.
    operation_from_due_ms: Quantiles,
    /// The 99th percentile for [`Objectives::p99_ms`], in milliseconds. `None` if it is not known:
    /// 1 % or more of the operations failed or were not sent, or there are no operations.
    #[serde(skip)]
    judged_p99_ms: Option<f64>,
    generator: Generator,
    timeline: Vec<SecondReport>,
}

#[derive(Clone, Debug, Serialize)]
struct StepReport {
    step: &'static str,
    ok: u64,
    timed_out: u64,
    closed: u64,
    refused: u64,
    wrong: u64,
    latency_ms: Quantiles,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Generator {
    /// CPU time in user mode divided by elapsed time. 1 means one core.
    cpu_user: f64,
    cpu_system: f64,
    lateness_ms: Quantiles,
}

#[derive(Clone, Debug, Serialize)]
struct SecondReport {
    second: u64,
    operations: u64,
    missed: u64,
    connected: u64,
    logged_in: u64,
    timed_out: u64,
    closed: u64,
    refused: u64,
    hello_p99_ms: f64,
    operation_p99_ms: f64,
    lateness_p99_ms: f64,
}

/// The objectives that a load must reach.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objectives {
    /// Minimum number of successful operations per second.
    pub goodput: Option<f64>,
    /// Maximum 99th percentile of latency in milliseconds, measured from the time when an operation
    /// was due. Operations that failed or were not sent are slower than any maximum.
    pub p99_ms: Option<f64>,
}

impl Report {
    pub(super) fn new(plan: &Plan, record: &Record, usage: Share) -> Self {
        let total = record.total();
        let duration_s = plan.duration.as_secs_f64();
        let (behaviour, offered_per_second) = match plan.behaviour {
            Behaviour::Short => ("short", None),
            Behaviour::ShortAt(rate) => ("short", Some(rate)),
            Behaviour::Closed => ("kept", None),
            Behaviour::KeptAt(rate) => ("kept", Some(rate)),
        };
        let failed = failures(plan.behaviour, &total);
        let steps = LoadStep::ALL.map(|step| StepReport::of(step, total.step(step)));
        // Results after the last whole second are in the totals, but not in the timeline.
        let whole = record.seconds.range(..plan.duration.as_secs());
        let timeline = whole.map(|(second, results)| SecondReport::of(*second, results));
        Self {
            target: plan.target.address(0).to_string(),
            clients: plan.clients,
            behaviour,
            offered_per_second,
            duration_s,
            goodput: float(total.served()) / duration_s,
            missed: total.missed,
            wrong: steps.iter().map(|step| step.wrong).sum(),
            steps: steps.into(),
            operation_from_due_ms: Quantiles::of(&total.all_from_due()),
            judged_p99_ms: judged_p99(&total.from_due, failed).map(milliseconds),
            generator: Generator {
                cpu_user: usage.user,
                cpu_system: usage.system,
                lateness_ms: Quantiles::of(&total.lateness),
            },
            timeline: timeline.collect(),
        }
    }

    /// Describes each objective that the load missed. Wrong replies always count as a missed
    /// objective.
    pub fn missed(&self, objectives: Objectives) -> Vec<String> {
        let mut missed = Vec::new();
        if self.wrong > 0 {
            missed.push(format!("{} wrong replies", self.wrong));
        }
        if let Some(least) = objectives.goodput.filter(|least| self.goodput < *least) {
            missed.push(format!(
                "goodput {:.1}/s, expected at least {least:.1}/s",
                self.goodput
            ));
        }
        if let Some(most) = objectives.p99_ms {
            match self.judged_p99_ms {
                None => missed.push(format!(
                    "p99 unknown, because there were no operations, or too many failed or were not \
                     sent, expected at most {most:.1} ms"
                )),
                Some(p99) if p99 > most => {
                    missed.push(format!("p99 {p99:.1} ms, expected at most {most:.1} ms"));
                }
                Some(_) => {}
            }
        }
        missed
    }
}

/// Number of operations that failed, timed out or were not sent. Without a rate, clients send an
/// operation only after they have connected and logged in, so a failed attempt counts as an
/// operation. With a rate, such attempts lead to operations that are not sent.
fn failures(behaviour: Behaviour, total: &Second) -> u64 {
    let of = |step| {
        let tally = total.step(step);
        tally.timed_out + tally.closed + tally.refused + tally.wrong
    };
    let attempts = [LoadStep::Connect, LoadStep::Hello, LoadStep::LogIn];
    let of_attempts = match behaviour {
        Behaviour::Short | Behaviour::Closed => attempts.map(of).iter().sum(),
        Behaviour::ShortAt(_) | Behaviour::KeptAt(_) => 0,
    };
    of(LoadStep::Operation) + of_attempts + total.missed
}

/// The 99th percentile of the latency of all operations, if `failed` operations are slower than
/// every latency in `from_due`. `None` if 1 % or more of the operations failed: the percentile is
/// then unknown.
fn judged_p99(from_due: &Distribution, failed: u64) -> Option<Duration> {
    let count = from_due.count();
    let is_known = failed.saturating_mul(99) < count;
    is_known.then(|| from_due.quantile(0.99 * float(count + failed) / float(count)))
}

impl StepReport {
    fn of(step: LoadStep, tally: &Tally) -> Self {
        Self {
            step: step.name(),
            ok: tally.ok,
            timed_out: tally.timed_out,
            closed: tally.closed,
            refused: tally.refused,
            wrong: tally.wrong,
            latency_ms: Quantiles::of(&tally.latency),
        }
    }
}

impl Quantiles {
    fn of(distribution: &Distribution) -> Self {
        let quantile = |q| milliseconds(distribution.quantile(q));
        Self {
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: milliseconds(distribution.max()),
        }
    }
}

impl SecondReport {
    fn of(second: u64, results: &Second) -> Self {
        let all = |count: fn(&Tally) -> u64| {
            LoadStep::ALL
                .iter()
                .map(|step| count(results.step(*step)))
                .sum()
        };
        Self {
            second: second + 1,
            operations: results.served(),
            missed: results.missed,
            connected: results.step(LoadStep::Connect).ok,
            logged_in: results.step(LoadStep::LogIn).ok,
            timed_out: all(|tally| tally.timed_out),
            closed: all(|tally| tally.closed),
            refused: all(|tally| tally.refused),
            hello_p99_ms: milliseconds(results.step(LoadStep::Hello).latency.quantile(0.99)),
            operation_p99_ms: milliseconds(results.all_from_due().quantile(0.99)),
            lateness_p99_ms: milliseconds(results.lateness.quantile(0.99)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offered = self
            .offered_per_second
            .map(|rate| format!(", {rate:.0}/s offered"));
        writeln!(
            f,
            "{} clients, {}{}, {:.0} s at {}",
            self.clients,
            self.behaviour,
            offered.unwrap_or_default(),
            self.duration_s,
            self.target
        )?;
        writeln!(
            f,
            "goodput {:.1} operations/s, {} missed, {} wrong replies",
            self.goodput, self.missed, self.wrong
        )?;
        writeln!(
            f,
            "{:<10} {:>9} {:>9} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}",
            "step", "ok", "timed out", "closed", "refused", "p50 ms", "p99 ms", "p999 ms", "max ms"
        )?;
        for step in &self.steps {
            writeln!(
                f,
                "{:<10} {:>9} {:>9} {:>8} {:>8} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
                step.step,
                step.ok,
                step.timed_out,
                step.closed,
                step.refused,
                step.latency_ms.p50,
                step.latency_ms.p99,
                step.latency_ms.p999,
                step.latency_ms.max
            )?;
        }
        let due = &self.operation_from_due_ms;
        writeln!(
            f,
            "operation latency from the due time: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
            due.p50, due.p99, due.max
        )?;
        let own = &self.generator;
        write!(
            f,
            "the load harness used {:.2} cores (user {:.2}, system {:.2}) and was late by p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
            own.cpu_user + own.cpu_system,
            own.cpu_user,
            own.cpu_system,
            own.lateness_ms.p50,
            own.lateness_ms.p99,
            own.lateness_ms.max
        )
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{Mix, Target, Work};

    /// The report on a load without a rate whose results are those of one second.
    async fn report(second: Second) -> Report {
        report_on(Behaviour::Closed, second).await
    }

    async fn report_on(behaviour: Behaviour, second: Second) -> Report {
        let mut record = Record::new(Instant::now());
        record.seconds.insert(0, second);
        let plan = Plan {
            target: Target::parse("mongodb://127.0.0.1/").await.unwrap(),
            clients: 1,
            behaviour,
            duration: Duration::from_secs(600_000),
            patience: (Duration::ZERO, Duration::ZERO),
            work: Work {
                database: "load".into(),
                collection: "things".into(),
                documents: 1,
                payload_bytes: 1,
                mix: Mix::FINDS,
            },
        };
        let usage = Share {
            user: 0.0,
            system: 0.0,
        };
        Report::new(&plan, &record, usage)
    }

    #[tokio::test]
    async fn goodput_counts_more_operations_than_fit_into_32_bits() {
        let mut second = Second::default();
        second.step_mut(LoadStep::Operation).ok = 6_000_000_000;
        let goodput = report(second).await.goodput;
        assert!(goodput > 9_999.0, "{goodput}");
    }

    const OBJECTIVES: Objectives = Objectives {
        goodput: None,
        p99_ms: Some(50.0),
    };

    /// 80 of the operations are slower than the objective, and 30 time out. Together, these are
    /// more than 1 %, although neither number is.
    #[tokio::test]
    async fn operations_that_timed_out_count_as_slower_than_the_objective_for_the_p99() {
        for (slow, timed_out, is_reached) in [
            (80, 0, true),
            (0, 30, true),
            (80, 30, false),
            (0, 101, false),
        ] {
            let mut second = Second::default();
            second.step_mut(LoadStep::Operation).timed_out = timed_out;
            for _ in 0..timed_out {
                second.timed_out_from_due.record(Duration::from_millis(40));
            }
            for number in 0..10_000 - timed_out {
                let millis = if number < slow { 1_000 } else { 1 };
                second.from_due.record(Duration::from_millis(millis));
            }
            let problems = report(second).await.missed(OBJECTIVES);
            assert_eq!(
                problems.is_empty(),
                is_reached,
                "{slow} {timed_out} {problems:?}"
            );
        }
    }

    #[tokio::test]
    async fn failed_logins_count_as_failed_operations_if_the_load_has_no_rate() {
        for (behaviour, is_reached) in [
            (Behaviour::Short, false),
            (Behaviour::Closed, false),
            (Behaviour::ShortAt(1.0), true),
            (Behaviour::KeptAt(1.0), true),
        ] {
            let mut second = Second::default();
            second.from_due.record(Duration::from_millis(1));
            second.step_mut(LoadStep::LogIn).timed_out = 1;
            let problems = report_on(behaviour, second).await.missed(OBJECTIVES);
            assert_eq!(problems.is_empty(), is_reached, "{problems:?}");
        }
    }

    #[tokio::test]
    async fn failed_and_missed_operations_count_as_slower_than_the_objective_for_the_p99() {
        for (served, refused, missed, is_reached) in [
            (0, 0, 0, false),
            (99, 0, 0, true),
            (100, 1, 0, true),
            (100, 2, 0, false),
            (100, 0, 2, false),
        ] {
            let mut second = Second::default();
            for _ in 0..served {
                second.from_due.record(Duration::from_millis(1));
            }
            second.step_mut(LoadStep::Operation).refused = refused;
            second.missed = missed;
            let problems = report(second).await.missed(OBJECTIVES);
            assert_eq!(problems.is_empty(), is_reached, "{problems:?}");
        }
    }
}
