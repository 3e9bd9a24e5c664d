//! What profilers are told: spans of `tracing`, and with the feature `nvtx` ranges of NVIDIA's profilers, from the same places.

#[cfg(feature = "nvtx")]
mod nvtx;

use std::fmt;
use tracing::Span;
use tracing::field::Value;
use tracing::span::EnteredSpan;

/// Begins a span, which ends when the returned guard is dropped: `span!(DEBUG, "pack", rows = a.nrows(); bytes)`. Values are looked at
/// only when somebody records them; the fields behind the semicolon are recorded later.
macro_rules! span {
    ($level:ident, $name:literal $(, $field:ident = $value:expr)* $(; $($later:ident),+)?) => {
        $crate::trace::Entered::new(
            tracing::span!(
                tracing::Level::$level, $name $(, $field = $value)* $($(, $later = tracing::field::Empty)+)?
            ),
            $name,
            &|_range| { $(write!(_range, concat!(" ", stringify!($field), "={}"), $value)?;)* Ok(()) },
        )
    };
}
pub(crate) use span;

/// What a range is called beside the name of its span.
type Describe<'a> = &'a dyn Fn(&mut dyn fmt::Write) -> fmt::Result;

/// A span that is under way; it ends when this is dropped.
#[must_use]
pub(crate) struct Entered {
    span: EnteredSpan,
    #[cfg(feature = "nvtx")]
    _range: Option<nvtx::Range>,
}

impl Entered {
    /// Enters a span.
    #[inline]
    pub(crate) fn new(span: Span, name: &'static str, describe: Describe<'_>) -> Self {
        #[cfg(not(feature = "nvtx"))]
        let _ = (name, describe);
        Self {
            span: span.entered(),
            #[cfg(feature = "nvtx")]
            _range: nvtx::Range::begin(name, describe),
        }
    }

    /// Records a field that was left for later.
    pub(crate) fn record(&self, field: &'static str, value: impl Value) {
        self.span.record(field, value);
    }
}
