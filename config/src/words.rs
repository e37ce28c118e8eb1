//! The words that keys accept, each list as an enum.

use crate::declare::words;

words! {
    /// A compressor of the MongoDB protocol.
    Compressor {
        /// Fast, with the least compression of the three.
        Snappy = "snappy",
        /// The best compression for its CPU time.
        Zstd = "zstd",
        /// Supported by the oldest clients.
        Zlib = "zlib",
    }
}

words! {
    /// How clients are served.
    Mode {
        /// Seawall authenticates clients and runs each operation on a pooled connection of its
        /// user.
        Pooled = "pooled",
        /// One server connection per client connection. All bytes pass unchanged; Seawall only
        /// observes them.
        Relay = "relay",
    }
}

words! {
    /// Source of the clients' credentials.
    Credentials {
        /// The service account if the connection string names one, else the configured users if
        /// there are any, else each user's own first login.
        Auto = "auto",
        /// Each user's own first login.
        Own = "self",
        /// Looked up by the service account of the connection string.
        Lookup = "lookup",
        /// The configured users.
        Users = "users",
        /// Clients do not authenticate: the deployment has no access control.
        None = "none",
    }
}

words! {
    /// Handling of clients that log in by a mechanism other than SCRAM.
    OtherMechanisms {
        /// They get an error that the mechanism is not enabled.
        Refuse = "refuse",
        /// Each gets a server connection of its own. Its login and all other messages pass
        /// unchanged.
        Relay = "relay",
    }
}

words! {
    /// Severity of an event.
    LogLevel {
        /// Something is broken.
        Error = "error",
        /// Something may break, or broke and recovered.
        Warn = "warn",
        /// Changes: starts, topology, drains.
        Info = "info",
        /// Events of single connections and operations.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

words! {
    /// The format of the log.
    LogFormat {
        /// A line for people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}
