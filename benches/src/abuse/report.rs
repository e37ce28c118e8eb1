//! Measures one attack: the victims' latencies before and during the attack, and Seawall's CPU time
//! and memory.

use std::time::Duration;

use seawall_tests::seawall::sum_of;
use tokio::time::{Instant, sleep};

use super::{
    Attack,
    arena::{Ending, Tally, UnderWay},
    testbed::AbuseTestbed,
    victims::{Phase, Victims},
};
use crate::{
    insight::seawall::Seawall,
    output::say,
    process::{cpu_time, peak_resident_bytes},
};

/// The lengths of the phases, and the target of the attack.
#[derive(Clone, Copy, Debug)]
pub struct AttackTimes {
    /// Time before the first phase. During this time, connections are established and pools fill.
    pub warm_up: Duration,
    /// Length of the phase before the attack, and of the phase during the attack.
    pub phase: Duration,
    /// True if attackers connect to the server, not to Seawall. In this case, the result shows only
    /// the slowdown that the shared server and machine cause.
    pub attacks_server: bool,
}

/// The result of one attack.
#[derive(Clone, Debug)]
pub struct AttackRow {
    name: &'static str,
    /// The victims' measurements before the attack. Failures during the attack's preparation are
    /// counted in `during`.
    before: Phase,
    during: Phase,
    seawall_cpu: [Duration; 2],
    attackers_cpu: Duration,
    grown_bytes: u64,
    server_connections: f64,
    tally: Tally,
    is_alive: bool,
}

/// Runs an attack against a new Seawall process, and measures the victims and Seawall.
pub async fn measure(
    testbed: &AbuseTestbed,
    attack: &Attack,
    times: AttackTimes,
    is_quick: bool,
) -> AttackRow {
    let seawall = testbed.seawall(attack.toml).await;
    let process = seawall.process_id();
    let cpu = || cpu_time(process).unwrap_or_default();
    let peak = || peak_resident_bytes(process).unwrap_or_default();
    let victims = Victims::start(seawall.address(), testbed.users.clone());
    sleep(times.warm_up).await;
    drop(victims.take());
    let cpu_at_first = cpu();
    watch(&seawall, times.phase).await;
    let before = victims.take();
    let (cpu_before, peak_before) = (cpu(), peak());

    let attacked = match times.attacks_server {
        true => testbed.server(),
        false => seawall.address(),
    };
    let addresses = [attacked, seawall.admin(), testbed.server()];
    let mut under_way = UnderWay::start(attack, addresses, &testbed.users, is_quick);
    under_way.wait_until_begun().await;
    let prepared = victims.take();
    let cpu_prepared = cpu();
    let server_connections = watch(&seawall, times.phase).await;
    let cpu_during = cpu().saturating_sub(cpu_prepared);
    let mut during = victims.stop().await;
    let grown_bytes = peak().saturating_sub(peak_before);
    let (tally, attackers_cpu) = under_way.end().await;
    during.failed.extend(prepared.failed);
    during.refused.extend(prepared.refused);
    AttackRow {
        name: attack.name,
        before,
        during,
        seawall_cpu: [cpu_before.saturating_sub(cpu_at_first), cpu_during],
        attackers_cpu,
        grown_bytes,
        server_connections,
        tally,
        is_alive: seawall.is_ready().await,
    }
}

/// Reads the number of server connections once a second during `time`. Returns the largest number.
async fn watch(seawall: &Seawall, time: Duration) -> f64 {
    let until = Instant::now() + time;
    let mut most = 0.0_f64;
    while Instant::now() < until {
        sleep(Duration::from_secs(1).min(until - Instant::now())).await;
        let page = seawall.metrics().await;
        most = most.max(sum_of(&page, "seawall_server_connections", &[]));
    }
    most
}

/// Prints the header of the table.
pub fn say_head() {
    say(
        "| attack | finds p50/p99 before, ms | finds p99 during, ms | p99 ratio | large finds p99, ms | logins p99, ms | longest first login, ms | operations failed | logins refused | Seawall CPU, s | attackers' CPU, s | memory peak growth, MiB | server connections | attempts: how they ended |",
    );
    say("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
}

impl AttackRow {
    /// The p99 of the victims' small finds during the attack, divided by the p99 before the attack.
    pub fn ratio(&self) -> f64 {
        self.during.finds.percentile_ms(99) / self.before.finds.percentile_ms(99)
    }

    /// Prints this row of the table.
    pub fn say(&self) {
        let Self {
            before,
            during,
            tally,
            ..
        } = self;
        let both = |of: fn(&Phase) -> f64| format!("{:.1} → {:.1}", of(before), of(during));
        let [cpu_before, cpu_during] = self.seawall_cpu.map(|cpu| cpu.as_secs_f64());
        let ended = tally
            .endings
            .iter()
            .map(|(ending, count)| format!("{count} {ending}"));
        say(&format!(
            "| {} | {:.2} / {:.2} | {:.2} | {:.2} | {} | {} | {} | {} | {} | {cpu_before:.2} → {cpu_during:.2} | {:.2} | +{} | {:.0} | {}: {} |",
            self.name,
            before.finds.percentile_ms(50),
            before.finds.percentile_ms(99),
            during.finds.percentile_ms(99),
            self.ratio(),
            both(|phase| phase.large.percentile_ms(99)),
            both(|phase| phase.logins.percentile_ms(99)),
            both(|phase| phase.first_logins.percentile_ms(100)),
            during.failed.len(),
            during.refused.len(),
            self.attackers_cpu.as_secs_f64(),
            self.grown_bytes >> 20,
            self.server_connections,
            tally.attempts,
            ended.collect::<Vec<_>>().join(", "),
        ));
        let first = |reasons: &[String]| reasons.first().cloned();
        for reason in [first(&during.failed), first(&during.refused)]
            .into_iter()
            .flatten()
        {
            say(&format!("\n{}: first failure: {reason}\n", self.name));
        }
    }

    /// One line for each way in which the attack, the victims' operations or Seawall did not behave
    /// as expected. Latencies are not checked.
    pub fn faults(&self, attack: &Attack) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, fault: String| {
            if !holds {
                faults.push(format!("{}: {fault}", self.name));
            }
        };
        let Self {
            before,
            during,
            tally,
            ..
        } = self;
        for (name, phase) in [("before", before), ("during", during)] {
            check(
                phase.failed.is_empty(),
                format!("operations failed {name} the attack: {:?}", phase.failed),
            );
            check(
                phase.refused.is_empty(),
                format!("logins refused {name} the attack: {:?}", phase.refused),
            );
            check(
                phase.finds.count() > 0,
                format!("no find succeeded {name} the attack"),
            );
            check(
                phase.logins.count() > 0,
                format!("no login succeeded {name} the attack"),
            );
        }
        check(self.is_alive, "Seawall is no longer ready".to_owned());
        check(tally.attempts > 0, "no attempt began".to_owned());
        check(
            tally.has_one_of(attack.expected) || attack.expected.is_empty(),
            format!(
                "expected one of {:?}, got {:?}",
                attack.expected, tally.endings
            ),
        );
        for ending in tally.endings.keys() {
            check(!matches!(ending, Ending::Breach(_)), ending.to_string());
        }
        faults
    }
}
