//! The operations that the heat map shows, and the colors of its cells.

use seawall_stats::Phase;

/// The dimension by which operations are selected. A selection has only one dimension, because the
/// history has no series for several dimensions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dimension {
    #[default]
    All,
    Server,
    Namespace,
    Command,
    Shape,
}

impl Dimension {
    pub(super) const ALL: [Self; 5] = [
        Self::All,
        Self::Server,
        Self::Namespace,
        Self::Command,
        Self::Shape,
    ];

    /// The name of the query parameter that selects operations by this dimension; empty for all
    /// operations.
    pub(super) fn parameter(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Server => "server",
            Self::Namespace => "namespace",
            Self::Command => "command",
            Self::Shape => "shape",
        }
    }

    /// True if the history has the time in each phase for operations that are selected by this
    /// dimension.
    pub(super) fn has_phases(self) -> bool {
        matches!(self, Self::All | Self::Server)
    }
}

/// The operations that the heat map shows, and the time that it shows for each of them: the whole
/// duration or the time in one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeatChoice {
    pub(super) dimension: Dimension,
    /// The selected server, namespace or command, or the id of the selected shape. `None` selects
    /// the first name.
    pub(super) name: Option<String>,
    /// The phase whose time the heat map shows; `None` for the whole duration.
    pub(super) phase: Option<Phase>,
}

impl HeatChoice {
    /// Selects a shape by its id.
    pub(super) fn of_shape(id: &str) -> Self {
        Self {
            dimension: Dimension::Shape,
            name: Some(id.to_owned()),
            phase: None,
        }
    }

    /// Selects the next phase; after the last phase, the whole duration. Phases exist only for all
    /// operations and for the operations of one server.
    pub(super) fn next_phase(&mut self) {
        if self.dimension.has_phases() {
            let mut phases = [None].into_iter().chain(Phase::ALL.map(Some)).cycle();
            phases.find(|phase| *phase == self.phase);
            self.phase = phases.next().flatten();
        }
    }
}

/// The colors that a terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Colours {
    /// The terminal shows no colors, or the user wants no colors.
    #[default]
    None,
    Sixteen,
    Many,
}

impl Colours {
    /// The colors that the terminal supports according to environment variables. `NO_COLOR` turns
    /// colors off (<https://no-color.org>).
    pub(super) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let of = |name| variable(name).unwrap_or_default();
        let terminal = of("TERM");
        if !of("NO_COLOR").is_empty() || terminal == "dumb" {
            return Self::None;
        }
        match !of("COLORTERM").is_empty()
            || terminal.contains("256color")
            || terminal.contains("direct")
        {
            true => Self::Many,
            false => Self::Sixteen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_variables_select_the_colors_of_the_heat_map() {
        let of = |variables: &[(&str, &str)]| {
            let value = |name: &str| variables.iter().find(|(of, _)| *of == name);
            Colours::from_variables(|name| value(name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("TERM", "xterm-256color")]), Colours::Many);
        assert_eq!(
            of(&[("TERM", "xterm"), ("COLORTERM", "truecolor")]),
            Colours::Many
        );
        assert_eq!(of(&[("TERM", "linux"), ("NO_COLOR", "")]), Colours::Sixteen);
        assert_eq!(
            of(&[("TERM", "xterm-256color"), ("NO_COLOR", "1")]),
            Colours::None
        );
        assert_eq!(of(&[("TERM", "dumb"), ("COLORTERM", "1")]), Colours::None);
    }
}
