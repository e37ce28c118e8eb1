//! The choices of the user: pane, order, period, baseline, filter.

use clap::ValueEnum;

use super::{
    heat_choice::{Colours, HeatChoice},
    histogram::Scale,
};
use seawall_api::Sort;

/// One of the panes between which the user switches with the keys 1 to 6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tab {
    #[default]
    Shapes,
    Storms,
    Stalls,
    Changes,
    Servers,
    HeatMap,
}

impl Tab {
    pub(super) const ALL: [(Self, &'static str); 6] = [
        (Self::Shapes, "shapes"),
        (Self::Storms, "storms"),
        (Self::Stalls, "stalls"),
        (Self::Changes, "changes"),
        (Self::Servers, "servers"),
        (Self::HeatMap, "heat map"),
    ];
}

/// The period of the figures, counted back from now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Since {
    #[value(name = "10s")]
    TenSeconds,
    #[default]
    #[value(name = "1m")]
    Minute,
    #[value(name = "10m")]
    TenMinutes,
    #[value(name = "1h")]
    Hour,
    All,
}

impl Since {
    const ALL: [Self; 5] = [
        Self::TenSeconds,
        Self::Minute,
        Self::TenMinutes,
        Self::Hour,
        Self::All,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::TenSeconds => "10s",
            Self::Minute => "1m",
            Self::TenMinutes => "10m",
            Self::Hour => "1h",
            Self::All => "all",
        }
    }

    /// The query parameter for this period; empty for the time since the proxy started.
    pub(super) fn parameter(self) -> String {
        match self {
            Self::All => String::new(),
            _ => format!("&since={}", self.as_str()),
        }
    }

    /// Length of the period; `None` for the time since the proxy started.
    pub(super) fn seconds(self) -> Option<f64> {
        match self {
            Self::TenSeconds => Some(10.0),
            Self::Minute => Some(60.0),
            Self::TenMinutes => Some(600.0),
            Self::Hour => Some(3600.0),
            Self::All => None,
        }
    }

    /// The query parameters of a heat map: its period, and the length of a step. This length is a
    /// multiple of the length of the steps that the proxy keeps for such a period. [`Self::All`]
    /// asks for seven days, the maximum of `since`.
    pub(super) fn heat_parameters(self) -> &'static str {
        match self {
            Self::TenSeconds => "since=10s&step=1s",
            Self::Minute => "since=1m&step=1s",
            Self::TenMinutes => "since=10m&step=10s",
            Self::Hour => "since=1h&step=1m",
            Self::All => "since=7d&step=1h",
        }
    }

    pub(super) fn longer(self) -> Self {
        let mut rest = Self::ALL.into_iter().skip_while(|since| *since != self);
        rest.nth(1).unwrap_or(self)
    }

    pub(super) fn shorter(self) -> Self {
        let mut rest = Self::ALL
            .into_iter()
            .rev()
            .skip_while(|since| *since != self);
        rest.nth(1).unwrap_or(self)
    }
}

/// The baseline with which the pane of changes compares the current figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Against {
    #[default]
    HourAgo,
    Yesterday,
    LastWeek,
}

impl Against {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::HourAgo => "1h",
            Self::Yesterday => "yesterday",
            Self::LastWeek => "last_week",
        }
    }

    pub(super) fn next(self) -> Self {
        match self {
            Self::HourAgo => Self::Yesterday,
            Self::Yesterday => Self::LastWeek,
            Self::LastWeek => Self::HourAgo,
        }
    }
}

/// The current choices of the user.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) tab: Tab,
    pub(super) sort: Sort,
    pub(super) since: Since,
    pub(super) against: Against,
    pub(super) filter: String,
    /// True while the user types the filter.
    pub(super) is_typing: bool,
    /// The id of the selected shape. `None` selects the first shape.
    pub(super) selected: Option<String>,
    /// True if the selected shape is shown in detail.
    pub(super) is_open: bool,
    pub(super) scale: Scale,
    /// The operations that the heat map shows.
    pub(super) heat: HeatChoice,
    /// The colors of the heat map.
    pub(super) colours: Colours,
    pub(super) is_help: bool,
    pub(super) is_paused: bool,
    /// Number of lines by which the current pane is scrolled. The pane of shapes has a cursor
    /// instead.
    pub(super) scrolled: u16,
    /// Number of characters by which the current pane is scrolled to the right. The pane of shapes
    /// is not scrolled.
    pub(super) sideways: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_stats::parse_time;

    #[test]
    fn period_and_step_of_every_heat_map_are_valid() {
        for since in Since::ALL {
            let parameters = since.heat_parameters();
            let times: Vec<_> = parameters
                .split('&')
                .map(|parameter| parse_time(parameter.split_once('=').unwrap().1))
                .collect();
            let [Ok(period), Ok(step)] = &times[..] else {
                panic!("{parameters}: {times:?}");
            };
            assert!(step < period, "{parameters}");
        }
    }
}
