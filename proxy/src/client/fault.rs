//! Injects faults, for experiments that show how applications behave when some of their operations
//! fail.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use seawall_command::{Command, Target};

/// A fault to inject: which operations get it, how often, and its effect.
#[derive(Debug)]
pub struct Fault {
    /// Name of the affected command; `None` for all commands.
    pub command: Option<String>,
    /// Affected namespace, `database` or `database.collection`; `None` for all namespaces.
    pub namespace: Option<String>,
    /// Percentage of matching operations that get the fault.
    pub share_percent: u64,
    /// How long each operation with the fault is delayed.
    pub delay: Duration,
    /// The effect after the delay.
    pub end: FaultEnd,
    /// Number of matching operations so far, with or without the fault.
    pub matched: AtomicU64,
}

/// The effect of a fault on an operation after the injected delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEnd {
    /// The operation continues as if there were no fault.
    Continue,
    /// The client gets an error with this code.
    Error(i32),
    /// The client connection is closed.
    Close,
}

impl Fault {
    /// Returns true if the operation gets the fault. Counts the operation if it matches. The faults
    /// are spread evenly over the matching operations, beginning with the first.
    pub(super) fn selects(&self, command: &Command<'_>) -> bool {
        if !self.matches(command) {
            return false;
        }
        let index = self.matched.fetch_add(1, Ordering::Relaxed);
        index.wrapping_mul(self.share_percent) % 100 < self.share_percent
    }

    fn matches(&self, command: &Command<'_>) -> bool {
        let is_named = match &self.command {
            Some(name) => name.as_bytes() == command.name,
            None => true,
        };
        is_named
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| is_in(command, namespace))
    }

    /// The value of the label `kind` of `seawall_faults_injected_total`.
    pub(super) fn kind(&self) -> &'static str {
        match self.end {
            FaultEnd::Continue => "delay",
            FaultEnd::Error(_) => "error",
            FaultEnd::Close => "close",
        }
    }
}

fn is_in(command: &Command<'_>, namespace: &str) -> bool {
    let Some((db, collection)) = namespace.split_once('.') else {
        return command.db == namespace;
    };
    let named = match command.target {
        Target::Text(name) => Some(name),
        _ => command.collection,
    };
    command.db == db && named == Some(collection)
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn count_selected(fault: &Fault, command: &Document, times: usize) -> usize {
        let bytes = command.to_vec().unwrap();
        let command = Command::inspect(&bytes).unwrap();
        (0..times).filter(|_| fault.selects(&command)).count()
    }

    fn fault(command: Option<&str>, namespace: Option<&str>, share_percent: u64) -> Fault {
        Fault {
            command: command.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            share_percent,
            delay: Duration::ZERO,
            end: FaultEnd::Continue,
            matched: AtomicU64::new(0),
        }
    }

    #[test]
    fn a_fault_applies_only_to_its_command_and_namespace() {
        let find = doc! {"find": "orders", "$db": "shop"};
        let more = doc! {"getMore": 7_i64, "collection": "orders", "$db": "shop"};
        let ping = doc! {"ping": 1, "$db": "admin"};
        let all = fault(None, None, 100);
        for command in [&find, &more, &ping] {
            assert_eq!(count_selected(&all, command, 3), 3);
        }
        assert_eq!(count_selected(&fault(Some("find"), None, 100), &more, 1), 0);
        for namespace in ["shop", "shop.orders"] {
            let fault = fault(None, Some(namespace), 100);
            assert_eq!(
                [&find, &more, &ping].map(|command| count_selected(&fault, command, 1)),
                [1, 1, 0]
            );
        }
        assert_eq!(
            count_selected(&fault(None, Some("shop.other"), 100), &find, 1),
            0
        );
    }

    #[test]
    fn faults_affect_exactly_the_configured_share_and_are_spread_evenly() {
        let find = doc! {"find": "orders", "$db": "shop"};
        for share in [1, 10, 33, 50, 99, 100] {
            let fault = fault(None, None, share);
            assert_eq!(
                count_selected(&fault, &find, 1000),
                usize::try_from(share * 10).unwrap(),
                "{share}"
            );
        }
        let half = fault(None, None, 50);
        assert_eq!(count_selected(&half, &find, 2), 1);
        assert_eq!(count_selected(&half, &find, 2), 1);
    }
}
