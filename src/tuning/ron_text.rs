//! RON of profiles and stored decisions. The writer of RON is long, and is compiled one time, for
//! values behind pointers, instead of for each type of a field.

use ron::error::SpannedResult;
use ron::ser::PrettyConfig;
use serde::{Deserialize, Serialize};

/// Writes a value as RON.
pub(super) fn pretty(value: &impl Serialize, style: PrettyConfig) -> ron::Result<String> {
    let value: &dyn erased_serde::Serialize = value;
    ron::ser::to_string_pretty(value, style)
}

/// Number of the layout of a text, which every layout has.
pub(super) fn schema_of(text: &str) -> SpannedResult<u32> {
    #[derive(Deserialize)]
    struct Schema {
        schema: u32,
    }
    ron::from_str(text).map(|Schema { schema }| schema)
}
