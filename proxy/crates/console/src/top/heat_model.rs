//! The names that the user can select for the heat map, and the query parameters and the title of
//! the selection. The names come from the last responses of the proxy.

use super::{heat_choice::Dimension, model::Model};
use crate::figures::{namespace, printable};
use seawall_api::percent_encode;

impl Model {
    /// The names that can be selected: servers, namespaces, commands, or ids of shapes. Shapes have
    /// the same order as in the pane of shapes; other names are sorted.
    fn heat_names(&self, dimension: Dimension) -> Vec<String> {
        let shapes = self.shapes.shapes.iter();
        let sorted = |mut names: Vec<String>| {
            names.sort_unstable();
            names.dedup();
            names
        };
        match dimension {
            Dimension::All => Vec::new(),
            Dimension::Server => {
                let pools = self.pools.pools.iter();
                sorted(pools.map(|pool| pool.server.clone()).collect())
            }
            Dimension::Namespace => {
                let shapes = shapes.filter(|shape| !shape.collection.is_empty());
                let names = shapes.map(|shape| format!("{}.{}", shape.db, shape.collection));
                sorted(names.collect())
            }
            Dimension::Command => sorted(shapes.map(|shape| shape.command.clone()).collect()),
            Dimension::Shape => self.rows().iter().map(|shape| shape.id.clone()).collect(),
        }
    }

    /// The selected name. `None` if all operations are selected, or if there is no name to select.
    pub(super) fn heat_name(&self) -> Option<String> {
        let choice = &self.choice.heat;
        let first = || self.heat_names(choice.dimension).into_iter().next();
        match choice.dimension {
            Dimension::All => None,
            _ => choice.name.clone().or_else(first),
        }
    }

    /// The query parameters of the selection, without a name if all operations are selected. `None`
    /// if a name is needed and there is none to select.
    pub(super) fn heat_parameters(&self) -> Option<String> {
        let choice = &self.choice.heat;
        let of = match choice.dimension {
            Dimension::All => String::new(),
            dimension => {
                let name = percent_encode(&self.heat_name()?);
                format!("&{}={name}", dimension.parameter())
            }
        };
        let phase = choice.phase.filter(|_| choice.dimension.has_phases());
        let phase = phase.map(|phase| format!("&phase={}", phase.as_str()));
        Some(of + &phase.unwrap_or_default())
    }

    /// The selection in words.
    pub(super) fn heat_title(&self) -> String {
        let choice = &self.choice.heat;
        let name = self.heat_name();
        let of = match (choice.dimension, name.as_deref()) {
            (Dimension::All, _) => "all operations".to_owned(),
            (dimension, None) => format!("no {}", dimension.parameter()),
            (Dimension::Shape, Some(id)) => self.shape_named(id),
            (dimension, Some(name)) => format!("{} {}", dimension.parameter(), printable(name)),
        };
        match choice.phase.filter(|_| choice.dimension.has_phases()) {
            Some(phase) => format!("{of}, phase {}", phase.as_str()),
            None => of,
        }
    }

    /// The command, namespace and text of a shape; its id if the shape is not listed.
    fn shape_named(&self, id: &str) -> String {
        let mut shapes = self.shapes.shapes.iter();
        let Some(shape) = shapes.find(|shape| shape.id == id) else {
            return format!("shape {}", printable(id));
        };
        let (command, text) = (printable(&shape.command), printable(&shape.shape));
        let namespace = namespace(&shape.db, &shape.collection);
        format!("shape {command} {namespace} {text}")
    }

    /// Selects the name at the index that `place` returns. `place` gets the current index and the
    /// last index.
    pub(super) fn select_heat(&mut self, place: impl FnOnce(usize, usize) -> usize) {
        let names = self.heat_names(self.choice.heat.dimension);
        let name = self.heat_name();
        let current = names.iter().position(|one| Some(one) == name.as_ref());
        let last = names.len().saturating_sub(1);
        let place = place(current.unwrap_or(0), last).min(last);
        self.choice.heat.name = names.get(place).cloned();
    }

    /// Selects the next dimension that has names to select.
    pub(super) fn next_dimension(&mut self) {
        let current = self.choice.heat.dimension;
        let mut next = Dimension::ALL.into_iter().cycle();
        next.find(|dimension| *dimension == current);
        let has_names = |of: &Dimension| *of == Dimension::All || !self.heat_names(*of).is_empty();
        if let Some(dimension) = next.find(has_names) {
            let heat = &mut self.choice.heat;
            (heat.dimension, heat.name) = (dimension, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::heat_choice::HeatChoice;
    use crate::top::model::tests::model;

    #[test]
    fn the_heat_map_can_be_limited_to_one_server_namespace_command_or_shape() {
        let mut model = model();
        assert_eq!(model.heat_parameters().unwrap(), "");
        assert_eq!(model.heat_title(), "all operations");
        model.next_dimension();
        assert_eq!(
            model.heat_parameters().unwrap(),
            "&server=db1.example.net%3A27017"
        );
        model.select_heat(|place, _| place + 1);
        assert_eq!(model.heat_title(), "server db2.example.net:27017");
        model.next_dimension();
        model.select_heat(|_, last| last);
        assert_eq!(model.heat_title(), "namespace shop.\\u{202e}elpmas");
        model.next_dimension();
        assert_eq!(model.heat_parameters().unwrap(), "&command=aggregate");
        model.next_dimension();
        let heaviest = model.rows()[0].id.clone();
        assert_eq!(
            model.heat_parameters().unwrap(),
            format!("&shape={heaviest}")
        );
        assert!(
            model
                .heat_title()
                .starts_with("shape find shop.orders {filter")
        );
        model.next_dimension();
        assert_eq!(model.choice.heat, HeatChoice::default());
    }

    #[test]
    fn phases_can_be_selected_for_all_operations_but_not_for_a_command() {
        let mut model = model();
        let phase = |model: &mut Model| {
            model.choice.heat.next_phase();
            model.heat_parameters().unwrap()
        };
        assert_eq!(phase(&mut model), "&phase=permit");
        assert_eq!(phase(&mut model), "&phase=checkout");
        assert_eq!(model.heat_title(), "all operations, phase checkout");
        let all = (0..5).map(|_| phase(&mut model)).last();
        assert_eq!(all.unwrap(), "");
        phase(&mut model);
        model.choice.heat.dimension = Dimension::Command;
        assert_eq!(model.heat_parameters().unwrap(), "&command=aggregate");
    }

    /// The user limits the heat map in two steps: first to a dimension (server, namespace, command
    /// or shape), then to one name of this dimension, for example one server.
    #[test]
    fn the_selection_skips_a_dimension_that_has_no_names() {
        let mut model = Model::default();
        model.next_dimension();
        assert_eq!(model.choice.heat, HeatChoice::default());
        model.choice.heat.dimension = Dimension::Server;
        assert_eq!(
            (model.heat_parameters(), model.heat_title()),
            (None, "no server".to_owned())
        );
    }
}
