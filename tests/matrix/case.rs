//! The cases: the client configurations with which each driver's test program runs.

use std::fmt::{self, Display};

use seawall_tests::{mongod::ServerVersion, raw::Mechanism};

/// A configuration of a driver's client.
#[derive(Debug)]
pub(crate) struct Case {
    /// The only mechanism of the user. `None`: the user has both SCRAM mechanisms, and the driver
    /// chooses one.
    pub(crate) mechanism: Option<Mechanism>,
    /// True if the deployment accepts only TLS.
    pub(crate) is_tls: bool,
    /// The third argument of the driver's test program: `stable` (the client uses the Stable API)
    /// or `plain`.
    pub(crate) api: &'static str,
    /// Parameters of the connection string. Several cases run through Seawall, and their results
    /// are compared with one direct run (without Seawall). The direct run uses the parameters of
    /// the first of these cases.
    pub(crate) parameters: &'static str,
    /// Additional parameters of the connection string for a run through Seawall.
    pub(crate) through: &'static str,
}

impl Case {
    pub(crate) const PLAIN: Self = Self {
        mechanism: None,
        is_tls: false,
        api: "plain",
        parameters: "",
        through: "",
    };

    const STABLE: Self = Self {
        api: "stable",
        ..Self::PLAIN
    };

    const fn by(self, mechanism: Mechanism) -> Self {
        Self {
            mechanism: Some(mechanism),
            ..self
        }
    }

    /// True if servers of this version can serve the case. The Stable API and load-balanced clients
    /// need 5.0.
    pub(crate) fn is_known_to(&self, version: ServerVersion) -> bool {
        let is_new = self.api == Self::STABLE.api || self.is_load_balanced();
        !is_new || version >= ServerVersion(5, 0, 0)
    }

    /// True if clients connect to several instances of Seawall behind one address.
    pub(crate) fn is_load_balanced(&self) -> bool {
        self.through == LOAD_BALANCED
    }

    /// True if the case is [`Case::PLAIN`], or differs from it only in [`Case::parameters`], for
    /// example in the compressors.
    pub(crate) fn has_default_options(&self) -> bool {
        let Self {
            mechanism,
            is_tls,
            api,
            through,
            ..
        } = self;
        mechanism.is_none() && !is_tls && *api == Self::PLAIN.api && through.is_empty()
    }

    /// True if the case differs from [`Case::PLAIN`] only in the mechanism or the compressor.
    pub(crate) fn is_variant(&self) -> bool {
        self.mechanism.is_some() || self.parameters.starts_with(COMPRESSORS)
    }

    const fn compressed(parameters: &'static str) -> Self {
        Self {
            parameters,
            ..Self::PLAIN
        }
    }
}

impl Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mechanism = self
            .mechanism
            .map_or("negotiated", |mechanism| mechanism.name());
        let tls = if self.is_tls { " TLS" } else { "" };
        let (parameters, through) = (self.parameters, self.through);
        write!(
            formatter,
            "{} {mechanism}{tls} {parameters}{through}",
            self.api
        )
    }
}

/// The values of [`Case::api`].
pub(crate) const APIS: [&str; 2] = [Case::PLAIN.api, Case::STABLE.api];

/// All cases. The Stable API is not combined with mechanisms, because neither depends on the other.
/// Every language runs all cases, except those that [`Language::runs`] excludes.
///
/// [`Language::runs`]: crate::language::Language::runs
pub(crate) const CASES: &[Case] = &[
    Case::PLAIN,
    Case::STABLE,
    Case::PLAIN.by(Mechanism::ScramSha1),
    Case::PLAIN.by(Mechanism::ScramSha256),
    Case::compressed("&compressors=snappy"),
    Case::compressed("&compressors=zlib"),
    Case::compressed("&compressors=zstd"),
    Case {
        // Two instances of Seawall behind one address. A replica set refuses a load-balanced
        // client, so the direct run uses a plain client.
        through: LOAD_BALANCED,
        ..Case::PLAIN
    },
    Case {
        // Node driver 3 can monitor a deployment in two ways. This parameter selects the way that
        // is not the default.
        parameters: UNIFIED_TOPOLOGY,
        ..Case::PLAIN
    },
    Case {
        is_tls: true,
        ..Case::PLAIN
    },
];

/// The beginning of the parameters of [`Case::compressed`].
const COMPRESSORS: &str = "&compressors=";
const UNIFIED_TOPOLOGY: &str = "&useUnifiedTopology=true&compressors=snappy,zlib";
const LOAD_BALANCED: &str = "&loadBalanced=true";
