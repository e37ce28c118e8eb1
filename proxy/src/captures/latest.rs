//! The latest capture of this process. A reload can change the directory of captures, or turn
//! captures off. The capture that runs at that time stays in its directory.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::directory::{CaptureId, Directory, StoredCapture};

/// The latest capture of this process, with its directory; empty before the first capture.
#[derive(Debug, Default)]
pub(super) struct Latest(ArcSwapOption<(CaptureId, Directory)>);

impl Latest {
    pub(super) fn set(&self, id: CaptureId, directory: Directory) {
        self.0.store(Some(Arc::new((id, directory))));
    }

    /// The directory of the capture `id`; `None` if this is not the latest capture.
    pub(super) fn directory_of(&self, id: &CaptureId) -> Option<Directory> {
        let latest = self.0.load_full();
        let latest = latest.filter(|latest| latest.0 == *id);
        latest.map(|latest| latest.1.clone())
    }

    /// The latest capture, if it is not in the directory `current`. `None` if it is in this
    /// directory, if there is no latest capture, or if it cannot be read. Blocks for some file
    /// operations.
    pub(super) fn kept_outside(&self, current: Option<&Directory>) -> Option<StoredCapture> {
        let latest = self.0.load_full()?;
        let (id, directory) = &*latest;
        match current == Some(directory) {
            true => None,
            false => directory.kept(id.clone()).ok(),
        }
    }
}
