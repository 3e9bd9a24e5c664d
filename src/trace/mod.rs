//! Instrumentation for profilers: spans of `tracing`, and with the feature `nvtx` NVTX ranges for
//! NVIDIA's profilers, from the same places.

#[cfg(feature = "nvtx")]
mod nvtx;

use std::fmt;
use tracing::Span;
use tracing::field::Value;
use tracing::span::EnteredSpan;

/// Begins a span, which ends when the returned guard is dropped:
/// `span!(DEBUG, "pack", rows = a.nrows(); bytes)`. Values are evaluated only when they are
/// recorded. The fields behind the semicolon are recorded later.
macro_rules! span {
    ($level:ident, $name:literal $(, $field:ident = $value:expr)* $(; $($later:ident),+)?) => {
        $crate::trace::Entered::new(
            tracing::span!(
                tracing::Level::$level,
                $name $(, $field = $value)* $($(, $later = tracing::field::Empty)+)?
            ),
            $name,
            &|_range| {
                $(write!(_range, concat!(" ", stringify!($field), "={}"), $value)?;)*
                Ok(())
            },
        )
    };
}
pub(crate) use span;

/// Writes the details of a range, which follow the name of its span.
type Describe<'a> = &'a dyn Fn(&mut dyn fmt::Write) -> fmt::Result;

/// Guard of an active span; the span ends when the guard is dropped.
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

    /// Records one of the fields declared behind the semicolon.
    pub(crate) fn record(&self, field: &'static str, value: impl Value) {
        self.span.record(field, value);
    }
}
