//! The command `seawall`, which clients run in the database `admin`.

/// The topics of the command `seawall`. Each topic selects the data to show or the action to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The state of the proxy.
    Status,
    /// The connections to each server.
    Pools,
    /// The connected clients.
    Clients,
    /// The shapes with the greatest server load since Seawall started.
    Shapes,
    /// The reconnect storms: sudden rises in the number of short-lived client connections.
    Storms,
    /// The stalls: periods in which operations took far longer than usual.
    Stalls,
    /// The values of the configuration.
    Config,
    /// Reads the configuration again.
    Reload,
}

impl Topic {
    /// All topics.
    pub const ALL: [Self; 8] = [
        Self::Status,
        Self::Pools,
        Self::Clients,
        Self::Shapes,
        Self::Storms,
        Self::Stalls,
        Self::Config,
        Self::Reload,
    ];

    /// The topic's name in the command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Pools => "pools",
            Self::Clients => "clients",
            Self::Shapes => "shapes",
            Self::Storms => "storms",
            Self::Stalls => "stalls",
            Self::Config => "config",
            Self::Reload => "reload",
        }
    }

    /// The topic with this name; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.name() == name)
    }

    /// The MongoDB privilege action that a user must have on the cluster to use the topic.
    pub fn required_action(self) -> &'static str {
        match self {
            Self::Reload => "shutdown",
            Self::Status
            | Self::Pools
            | Self::Clients
            | Self::Shapes
            | Self::Storms
            | Self::Stalls
            | Self::Config => "serverStatus",
        }
    }

    /// True if the topic only shows data, and false if it runs an action.
    pub fn only_reads(self) -> bool {
        self != Self::Reload
    }
}
