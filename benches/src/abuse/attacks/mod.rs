//! All attacks, in the order in which they run.

mod documents;
mod logins;
mod messages;
mod operations;
mod relays;
mod sockets;

use super::{
    Attack,
    arena::Ending::{Answered, Closed, Held, Refused},
};

/// `AuthenticationFailed`.
const AUTHENTICATION_FAILED: i32 = 18;
/// `Unauthorized`.
const UNAUTHORIZED: i32 = 13;
/// `MechanismUnavailable`.
const MECHANISM_UNAVAILABLE: i32 = 334;
/// An answer of the admin address, not a server's code.
const HTTP_FORBIDDEN: i32 = 403;

/// Makes a function of an attack what [`Attack::run`] takes.
macro_rules! run {
    ($function:path) => {
        |arena| Box::pin($function(arena))
    };
}

/// The list. The first is no attack: it shows how far the figures differ by themselves.
pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "nothing",
        pace: "no attack, for comparison",
        toml: "",
        expected: &[],
        run: run!(operations::nothing),
    },
    Attack {
        name: "busy-neighbour",
        pace: "no attack: a thread of lowest priority computes all the time",
        toml: "",
        expected: &[],
        run: run!(operations::busy_neighbour),
    },
    Attack {
        name: "silent-sockets",
        pace: "4,096 connections that say nothing",
        toml: "",
        expected: &[Held, Closed],
        run: run!(sockets::silent),
    },
    Attack {
        name: "greeted-sockets",
        pace: "4,096 connections that say hello and do not log in",
        toml: "",
        expected: &[Held, Closed],
        run: run!(sockets::greeted),
    },
    Attack {
        name: "unfinished-logins",
        pace: "100 connections that begin logins of 25 unknown users again and again",
        toml: "",
        expected: &[Held, Closed],
        run: run!(logins::unfinished),
    },
    Attack {
        name: "claimed-first-logins",
        pace: "100 connections begin logins of 16 victims that Seawall does not know yet",
        toml: "",
        expected: &[Held, Closed],
        run: run!(logins::claimed),
    },
    Attack {
        name: "outdated-keys",
        pace: "100 logins a second with the last password but one, changed 5 times a second",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::outdated),
    },
    Attack {
        name: "victims-name",
        pace: "200 wrong passwords a second for a victim's user",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::victims_name),
    },
    Attack {
        name: "long-names",
        pace: "2,000 hellos a second with user names of 15,000 bytes",
        toml: "",
        expected: &[Answered],
        run: run!(logins::long_names),
    },
    Attack {
        name: "pipelined-login",
        pace: "100 a second: commands between and after the steps of a false login",
        toml: "",
        expected: &[Refused(UNAUTHORIZED)],
        run: run!(logins::pipelined),
    },
    Attack {
        name: "replayed-scram",
        pace: "50 a second: the last message of another login",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::replayed),
    },
    Attack {
        name: "altered-scram",
        pace: "100 a second: a valid proof with one part changed",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::altered),
    },
    Attack {
        name: "mechanism-confusion",
        pace: "100 a second: other mechanisms, two at once, proofs of the other one",
        toml: "",
        expected: &[Refused(MECHANISM_UNAVAILABLE)],
        run: run!(logins::confused),
    },
    Attack {
        name: "interleaved-logins",
        pace: "100 a second: one login begun inside another, and finished elsewhere",
        toml: "",
        expected: &[Refused(AUTHENTICATION_FAILED)],
        run: run!(logins::interleaved),
    },
    Attack {
        name: "many-conversations",
        pace: "20 connections a second with 200 saslStart each",
        toml: "",
        expected: &[Answered],
        run: run!(logins::many_conversations),
    },
    Attack {
        name: "compressed-before-login",
        pace: "200 a second",
        toml: "",
        expected: &[Closed],
        run: run!(messages::compressed_before_login),
    },
    Attack {
        name: "compression-bombs",
        pace: "4 a second, each up to 48 MB of 47 KB, or of another size than declared",
        toml: "",
        expected: &[Closed],
        run: run!(messages::bombs),
    },
    Attack {
        name: "largest-messages",
        pace: "2 a second of 48,000,000 bytes with client metadata",
        toml: "",
        expected: &[Refused(UNAUTHORIZED)],
        run: run!(messages::largest),
    },
    Attack {
        name: "slow-senders",
        pace: "5,000 logged-in connections announce 48 MB, half of them compressed, and send 1,000 bytes every 2 s",
        toml: "",
        expected: &[Held, Closed],
        run: run!(messages::slow_senders),
    },
    Attack {
        name: "partial-messages",
        pace: "5,000 logged-in connections send 60,000 bytes of a message of 64 KiB",
        toml: "",
        expected: &[Held, Closed],
        run: run!(messages::partial),
    },
    Attack {
        name: "slow-readers",
        pace: "100 logged-in connections do not read a reply of 15 MiB",
        toml: "",
        expected: &[Answered, Closed],
        run: run!(messages::slow_readers),
    },
    Attack {
        name: "slow-compressed-readers",
        pace: "the same, replies compressed",
        toml: "",
        expected: &[Answered, Closed],
        run: run!(messages::slow_compressed_readers),
    },
    Attack {
        name: "many-slow-readers",
        pace: "5,000 logged-in connections read 64 bytes a second of a reply of 1 MiB, or nothing",
        toml: "",
        expected: &[Answered, Closed],
        run: run!(messages::many_slow_readers),
    },
    Attack {
        name: "slow-queries",
        pace: "150 clients of one user, each with queries of a second",
        toml: "",
        expected: &[Answered],
        run: run!(operations::slow_queries),
    },
    Attack {
        name: "deep-documents",
        pace: "50 a second, up to 100,000 levels, slow log on",
        toml: "slow_log.threshold_ms = 0\nslow_log.redact = false\nslow_log.file = \"/dev/null\"\n",
        expected: &[Refused(documents::OVERFLOW)],
        run: run!(documents::deep),
    },
    Attack {
        name: "duplicate-keys",
        pace: "200 a second: $db, command, lsid, filter twice",
        toml: "",
        expected: &[Refused(documents::DUPLICATE_FIELD)],
        run: run!(documents::duplicate_keys),
    },
    Attack {
        name: "embedded-nuls",
        pace: "200 a second: in databases, collections and user names",
        toml: "",
        expected: &[Refused(documents::INVALID_NAMESPACE)],
        run: run!(documents::embedded_nuls),
    },
    Attack {
        name: "cross-site-admin",
        pace: "100 requests a second as of another site's page",
        toml: "",
        expected: &[Refused(HTTP_FORBIDDEN)],
        run: run!(relays::cross_site),
    },
    Attack {
        name: "relay-guard",
        pace: "100 a second: commands before login, wrapped, compressed, X.509; Seawall relays",
        toml: "deployment.mode = \"relay\"\n",
        expected: &[Refused(UNAUTHORIZED)],
        run: run!(relays::guard),
    },
];
