//! Failures that are made, for experiments: what applications do when some of their operations go wrong.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::command::{Command, Target};

/// What is made to go wrong, and how often.
#[derive(Debug)]
pub struct Fault {
    /// The command's name, or every one.
    pub command: Option<String>,
    /// `database` or `database.collection`, or every one.
    pub namespace: Option<String>,
    /// How many of these operations in a hundred.
    pub share_percent: u64,
    /// How long each is held.
    pub delay: Duration,
    /// What becomes of it then.
    pub end: FaultEnd,
    /// Operations that were concerned so far, struck or not.
    pub turn: AtomicU64,
}

/// What becomes of an operation that is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEnd {
    /// It goes on.
    GoesOn,
    /// It is answered with this code.
    Error(i32),
    /// Its client is closed.
    Close,
}

impl Fault {
    /// Whether it strikes this operation: spread evenly, the first of them included.
    pub(super) fn strikes(&self, command: &Command<'_>) -> bool {
        if !self.is_about(command) {
            return false;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        turn.wrapping_mul(self.share_percent) % 100 < self.share_percent
    }

    fn is_about(&self, command: &Command<'_>) -> bool {
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

    /// The label.
    pub(super) fn kind(&self) -> &'static str {
        match self.end {
            FaultEnd::GoesOn => "delay",
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

    fn struck(fault: &Fault, command: &Document, times: usize) -> usize {
        let bytes = command.to_vec().unwrap();
        let command = Command::inspect(&bytes).unwrap();
        (0..times).filter(|_| fault.strikes(&command)).count()
    }

    fn fault(command: Option<&str>, namespace: Option<&str>, share_percent: u64) -> Fault {
        Fault {
            command: command.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            share_percent,
            delay: Duration::ZERO,
            end: FaultEnd::GoesOn,
            turn: AtomicU64::new(0),
        }
    }

    #[test]
    fn only_what_it_is_about_is_struck() {
        let find = doc! {"find": "orders", "$db": "shop"};
        let more = doc! {"getMore": 7_i64, "collection": "orders", "$db": "shop"};
        let ping = doc! {"ping": 1, "$db": "admin"};
        let all = fault(None, None, 100);
        for command in [&find, &more, &ping] {
            assert_eq!(struck(&all, command, 3), 3);
        }
        assert_eq!(struck(&fault(Some("find"), None, 100), &more, 1), 0);
        for namespace in ["shop", "shop.orders"] {
            let fault = fault(None, Some(namespace), 100);
            assert_eq!(
                [&find, &more, &ping].map(|command| struck(&fault, command, 1)),
                [1, 1, 0]
            );
        }
        assert_eq!(struck(&fault(None, Some("shop.other"), 100), &find, 1), 0);
    }

    #[test]
    fn the_share_is_exact_and_spread() {
        let find = doc! {"find": "orders", "$db": "shop"};
        for share in [1, 10, 33, 50, 99, 100] {
            let fault = fault(None, None, share);
            assert_eq!(
                struck(&fault, &find, 1000),
                usize::try_from(share * 10).unwrap(),
                "{share}"
            );
        }
        let half = fault(None, None, 50);
        assert_eq!(struck(&half, &find, 2), 1);
        assert_eq!(struck(&half, &find, 2), 1);
    }
}
