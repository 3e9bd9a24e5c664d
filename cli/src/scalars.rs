//! Calls of generic functions with the scalar type of an argument.

/// Calls a function with the scalar type of a kind: `by_scalar!(dtype, solve(args, console))`.
macro_rules! by_scalar {
    ($kind:expr, $($function:ident)::+($($argument:expr),*)) => {
        match $kind {
            sparseop::ScalarKind::F32 => $($function)::+::<f32>($($argument),*),
            sparseop::ScalarKind::F64 => $($function)::+::<f64>($($argument),*),
        }
    };
}
