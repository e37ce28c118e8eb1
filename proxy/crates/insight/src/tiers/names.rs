//! The labels of the series in the history, and the numbers that replace the labels in packed
//! steps.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use seawall_stats::Label;

/// When labels are forgotten, they are reduced to this share of their memory limit: the search for
/// rare labels is then seldom needed.
const KEPT_SHARE: (usize, usize) = (3, 4);

/// The labels that frames use, by number.
#[derive(Debug)]
pub(super) struct LabelStore {
    /// Each label with the number of frames that use it.
    labels: HashMap<u32, (Arc<Label>, usize)>,
    numbers: HashMap<Arc<Label>, u32>,
    bytes: usize,
    /// The next number. It is greater than all numbers in frames, also those of forgotten labels.
    next: u32,
    /// The label of all forgotten shapes.
    other_shapes: Arc<Label>,
}

impl LabelStore {
    pub(super) fn new() -> Self {
        Self {
            labels: HashMap::new(),
            numbers: HashMap::new(),
            bytes: 0,
            next: 0,
            other_shapes: Arc::new(Label::OtherShapes),
        }
    }

    /// Estimated memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The label with this number; [`Label::OtherShapes`] if the label was forgotten.
    pub(super) fn get(&self, number: u32) -> Arc<Label> {
        let label = self.labels.get(&number).map(|(label, _)| label);
        Arc::clone(label.unwrap_or(&self.other_shapes))
    }

    /// Returns the number of a label and counts one more frame that uses it. Also returns true if
    /// the label is new.
    pub(super) fn use_label(&mut self, label: &Arc<Label>) -> (u32, bool) {
        if let Some(number) = self.numbers.get(label) {
            if let Some((_, uses)) = self.labels.get_mut(number) {
                *uses += 1;
            }
            return (*number, false);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.insert(number, Arc::clone(label), 1);
        (number, true)
    }

    fn insert(&mut self, number: u32, label: Arc<Label>, uses: usize) {
        self.bytes += label_bytes(&label);
        self.numbers.insert(Arc::clone(&label), number);
        self.labels.insert(number, (label, uses));
    }

    /// Reduces the number of frames that use a label by one. If no frame uses the label any more,
    /// removes the label and returns true.
    pub(super) fn release(&mut self, number: u32) -> bool {
        let Some((_, uses)) = self.labels.get_mut(&number) else {
            return false;
        };
        *uses -= 1;
        let is_unused = *uses == 0;
        if is_unused {
            self.remove(number);
        }
        is_unused
    }

    fn remove(&mut self, number: u32) {
        if let Some((label, _)) = self.labels.remove(&number) {
            self.bytes -= label_bytes(&label);
            self.numbers.remove(&label);
        }
    }

    /// Adds a label from the history file. No frame uses it yet.
    pub(super) fn restore(&mut self, number: u32, label: Label) {
        self.next = self.next.max(number.wrapping_add(1));
        self.insert(number, Arc::new(label), 0);
    }

    /// Increases the number of frames that use a label by one, for a frame from the history file.
    pub(super) fn restore_use(&mut self, number: u32) {
        self.next = self.next.max(number.wrapping_add(1));
        if let Some((_, uses)) = self.labels.get_mut(&number) {
            *uses += 1;
        }
    }

    /// Removes the labels that no frame uses. Returns their numbers.
    pub(super) fn remove_unused(&mut self) -> Vec<u32> {
        let unused = self.labels.iter().filter(|(_, (_, uses))| *uses == 0);
        let unused: Vec<_> = unused.map(|(number, _)| *number).collect();
        unused.iter().for_each(|number| self.remove(*number));
        unused
    }

    /// Forgets labels of shapes until all labels together take at most [`KEPT_SHARE`] of
    /// `max_bytes`. Begins with the label that the fewest frames use. If several labels have the
    /// same number of frames, begins with the oldest of them. Keeps the labels in `kept`, and all
    /// labels that are not of shapes. Returns the numbers of the forgotten labels.
    pub(super) fn forget_rare(&mut self, max_bytes: usize, kept: &HashSet<&Label>) -> Vec<u32> {
        let can_forget =
            |label: &Label| matches!(label, Label::Shape { .. }) && !kept.contains(label);
        let rare = self.labels.iter();
        let rare = rare.filter(|(_, (label, _))| can_forget(label));
        let mut rare: Vec<_> = rare.map(|(number, (_, uses))| (*uses, *number)).collect();
        rare.sort_unstable();
        let (share, of) = KEPT_SHARE;
        let max_bytes = max_bytes / of * share;
        let mut forgotten = Vec::new();
        for (_, number) in rare {
            if self.bytes <= max_bytes {
                break;
            }
            self.remove(number);
            forgotten.push(number);
        }
        forgotten
    }

    /// All labels with their numbers.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Label)> {
        let labels = self.labels.iter();
        labels.map(|(number, (label, _))| (*number, &**label))
    }
}

/// Estimated memory of a label in bytes: its texts, and its entries in the two maps of
/// [`LabelStore`].
pub(super) fn label_bytes(label: &Label) -> usize {
    let texts = match label {
        Label::Shape {
            id,
            command,
            db,
            collection,
            text,
            ..
        } => id.len() + command.len() + db.len() + collection.len() + text.len(),
        Label::Namespace {
            command,
            db,
            collection,
        } => command.len() + db.len() + collection.len(),
        Label::Server(address) => address.len(),
        Label::Phase { server, .. } => server.as_ref().map_or(0, |address| address.len()),
        Label::Whole | Label::OtherShapes => 0,
    };
    texts + size_of::<Label>() + 64
}
