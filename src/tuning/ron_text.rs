//! RON of profiles and stored decisions. The writer of RON is long, and is compiled one time, for
//! values behind pointers, instead of for each type of a field.

use ron::ser::PrettyConfig;
use serde::Serialize;

/// Writes a value as RON.
pub(super) fn pretty(value: &impl Serialize, style: PrettyConfig) -> ron::Result<String> {
    let value: &dyn erased_serde::Serialize = value;
    ron::ser::to_string_pretty(value, style)
}
