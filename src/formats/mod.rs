//! The storage formats, one folder each.
//!
//! To add one: create its folder, add its `mod` line and its line in `registry!`, which everything else follows from: its name, the spelling of its
//! plans, its candidates, its column in benchmarks and its conformance tests.

mod access;
pub mod blocked;
mod chunks;
pub mod coo;
pub mod csr;
pub mod ell;
pub mod hyb;
pub mod jds;
pub mod packed;
mod placed;
mod plan_text;
mod scaled;
pub mod sell;
mod several;
pub mod tiles;
mod traffic;
mod units;
mod update;
mod values;

pub(crate) use crate::encoding::DeviceCsr;
pub(crate) use access::Access;
pub(crate) use chunks::{chunk_rows, chunks};
pub(crate) use placed::Placed;
pub(crate) use plan_text::PlanArgs;
pub(crate) use scaled::Scaler;
pub use several::{Layout, Multivector};
pub(crate) use several::{Several, Shape, multiplies_several, several_plan};
pub use traffic::Traffic;
pub(crate) use traffic::{ROW_BATCH, STREAMS, chain_us, gathered, scattered, slot_bytes, vector_bytes};
pub(crate) use update::{Arrays, NoArrays, Updater};

use crate::analysis::Analysis;
use crate::device::{DeviceSpec, Gpu, Ptr, Queue, Residency, Scaling};
use crate::encoding::{Order, PackedSlices, Packing, Uploaded as Slices};
use crate::matrix::{CsrMatrix, CsrView};
use crate::{Error, Scalar, ScalarKind};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Debug, Display};

registry! {
    csr => Csr,
    ell => Ell,
    sell => Sell,
    jds => Jds,
    hyb => Hyb,
    coo => Coo,
    tiles => Tiles,
    blocked => Blocked,
}

/// What a storage format must provide. Implemented by the unit struct at the top of each format's folder.
pub(crate) trait Format: 'static {
    /// The format's parameters: plain data, spelled by `Display` and read back by [`Format::parse`].
    type Plan: Debug + Clone + PartialEq + Display;
    /// The packed matrix in host memory.
    type Host<T: Scalar>: HostMatrix<T>;

    /// One spelling of every kind of plan, for help and for the conformance tests.
    const EXAMPLES: &'static [&'static str];

    /// Reads what stands between the parentheses of a plan's spelling.
    fn parse(args: &mut PlanArgs<'_>) -> Result<Self::Plan, Error>;

    /// The plans worth considering for a matrix on a kind of device.
    fn candidates(analysis: &Analysis, weights: &Weights, on: Target) -> Vec<Self::Plan>;

    /// What one product reads and does; pure, computed without packing, and exact but where [`Format::is_exact`] says otherwise.
    fn traffic(plan: &Self::Plan, analysis: &Analysis, scalar: ScalarKind) -> Traffic;

    /// The kernel that runs the plan there: the key of its coefficients in a profile.
    fn kernel(plan: &Self::Plan, on: Target) -> &'static str;

    /// Whether [`Format::traffic`] is what is packed to the byte. Otherwise no more than twice as much is packed.
    fn is_exact(_: &Self::Plan, _: &Analysis) -> bool {
        true
    }

    /// Whether every product gives the same bits, on every device.
    fn deterministic(_: &Self::Plan) -> bool {
        true
    }

    /// Whether the one array of values is in the order of the entries.
    fn keeps_order(_: &Self::Plan) -> bool {
        false
    }

    /// Whether a plan may be chosen for such a device: its product is only enqueued there, without waiting, and in no more launches than
    /// it needs. What is there to be compared with is only taken where it is given.
    fn eligible(_: &Self::Plan, _: Target) -> bool {
        true
    }

    /// Lower bound of the time of a product on a GPU, in µs, beside its bytes: from the longest chain of
    /// loads of one thread ([`chain_us`]) and the number of threads. Exact from the row lengths.
    fn floor_us(_: &Self::Plan, _: &Analysis) -> f64 {
        0.0
    }

    /// The order of the rows and the encoding, where a plan is packed slices and nothing else: those a GPU packs itself, from CSR.
    fn slices(_: &Self::Plan) -> Option<(Order, Packing)> {
        None
    }

    /// Packs a matrix.
    ///
    /// # Errors
    ///
    /// [`Error::PlanLimit`] for what the format cannot hold with such parameters.
    fn pack<T: Scalar>(plan: &Self::Plan, a: CsrView<'_, T>) -> Result<Self::Host<T>, Error>;
}

/// A matrix packed in one format, in host memory.
pub(crate) trait HostMatrix<T: Scalar>: Debug + Send + Sync + 'static {
    /// `y = A x`; `y` is overwritten without being read. The bits of `y` do not depend on the number of threads.
    ///
    /// `x` has `ncols` elements and `y` has `nrows`: the caller has checked.
    fn spmv(&self, x: &[T], y: &mut [T]);

    /// The matrix back in CSR, its entries in the order they were packed from.
    fn unpack(&self) -> CsrMatrix<T>;

    /// The arrays with the values, which are zero where there is no entry; or why there are none.
    fn values_mut(&mut self) -> Result<Arrays<&mut [T]>, NoArrays> {
        Err(NoArrays::NO_PLACES)
    }

    /// The packed slices, where there are such.
    fn packed_slices(&mut self) -> Option<&mut PackedSlices<T>> {
        None
    }

    /// What finds single entries, where the format can.
    fn access(&self) -> Option<&dyn Access<T>> {
        None
    }

    /// What adds single entries, where there is something that finds them.
    fn access_mut(&mut self) -> Option<&mut dyn Access<T>> {
        None
    }

    /// The rows one after the other, where they are stored so: what several vectors are multiplied with.
    fn rows(&self) -> Option<&csr::Host<T>> {
        None
    }

    /// Bytes of the packed arrays.
    fn matrix_bytes(&self) -> u64;

    /// Copies the packed matrix to a GPU. A format without GPU kernels keeps the default, which
    /// refuses, and its plans are not [eligible](Format::eligible) there.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] and what compiling kernels gives; [`Error::DeviceUnavailable`] by default.
    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        let reason = "this format has no GPU kernels; take another plan, or the CPU".to_owned();
        Err(Error::DeviceUnavailable { device: gpu.to_string(), reason })
    }
}

/// A matrix packed in one format, in the memory of a GPU. Many threads and queues may use it at once.
pub(crate) trait DeviceMatrix<T: Scalar>: Debug + Send + Sync + 'static {
    /// Enqueues `y = A x`; `y` is overwritten without being read. Never waits or allocates after the first product on a queue, unless
    /// the format says otherwise.
    ///
    /// # Errors
    ///
    /// What the GPU gives; the format's own where it has one.
    ///
    /// # Safety
    ///
    /// `x` has `ncols` elements and `y` has `nrows`, both in the memory of the matrix's GPU; they do not overlap, and they and the
    /// matrix live until the product is done.
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error>;

    /// Enqueues `y = alpha A x + beta y` where the format's kernels can do both at once, and says whether they can; if not, nothing is
    /// enqueued. With `beta = 0` the `y` before does not matter, with `alpha = 0` neither `A` nor `x`.
    ///
    /// # Errors
    ///
    /// As [`spmv`](Self::spmv).
    ///
    /// # Safety
    ///
    /// As [`spmv`](Self::spmv); the factors are in the memory of the same GPU, not in `y`, and live as long.
    unsafe fn spmv_scaled(&self, _: &Queue, _: Ptr<T>, _: Ptr<T>, _: Scaling<'_, T>) -> Result<bool, Error> {
        Ok(false)
    }

    /// The matrix back in CSR, its entries in the order they were packed from.
    ///
    /// # Errors
    ///
    /// What copying from the GPU gives.
    fn unpack(&self) -> Result<CsrMatrix<T>, Error>;

    /// The same arrays as [`HostMatrix::values_mut`], with their lengths.
    fn values(&self) -> Result<Arrays<(Ptr<T>, usize)>, NoArrays> {
        Err(NoArrays::NO_PLACES)
    }

    /// The packed slices, where there are such: what several vectors are multiplied with.
    fn slices(&self) -> Option<&Slices<T>> {
        None
    }

    /// Whether a product waits until it is done; such a product does not use the queue that it is given, but waits for it first.
    fn waits(&self) -> bool {
        false
    }

    /// Bytes of the packed arrays in the memory of the GPU.
    fn device_bytes(&self) -> u64;

    /// How much of the arrays stays in the L2 between products.
    fn residency(&self) -> Residency;
}

/// The kinds of device there are plans for.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The processor.
    Cpu,
    /// A GPU.
    Gpu,
}

impl Target {
    /// The kind of a device.
    pub fn of(device: &DeviceSpec) -> Self {
        if device.gpu.is_some() { Self::Gpu } else { Self::Cpu }
    }
}

/// What padding, overflow and pieces cost relative to each other, in stored slots: how the formats with a threshold
/// place it. Measured for a device and kept in its profile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Weights {
    /// An entry in a COO part, in ELL slots.
    pub tail_slots: f64,
    /// A section of JDS, in ELL slots.
    pub section_slots: u64,
}

impl Default for Weights {
    /// The bytes of a COO entry over those of an ELL slot, rounded up for the row search, and a section table line
    /// plus a half-filled strip on either side.
    fn default() -> Self {
        Self { tail_slots: 2.0, section_slots: jds::DEFAULT_SECTION_SLOTS }
    }
}

/// Whether slots beside each other often hold columns that follow one another, as in stencils: then it pays to load `x` whole.
pub(crate) fn follow_across_lanes(col_idx: &[u32]) -> bool {
    /// The narrowest vector there is a kernel for.
    const LANES: usize = 8;
    /// One vector in so many is looked at.
    const STRIDE: usize = 16;
    /// The look costs a tenth of what a whole load saves (Zen 4: 0.04 ns against 0.2 to 0.4 ns a slot).
    const WORTH: f64 = 0.2;
    let (mut seen, mut consecutive) = (0u32, 0u32);
    for lanes in col_idx.chunks_exact(LANES).step_by(STRIDE) {
        seen += 1;
        consecutive += u32::from(lanes.windows(2).all(|w| w[1] == w[0].wrapping_add(1)));
    }
    f64::from(consecutive) > WORTH * f64::from(seen)
}

/// A CSR matrix put together row by row: `row(i, push)` pushes the columns and values of row `i` in order.
pub(crate) fn from_rows<T: Scalar>(
    nrows: usize,
    ncols: usize,
    mut row: impl FnMut(usize, &mut dyn FnMut(u32, T)),
) -> CsrMatrix<T> {
    let mut row_ptr = Vec::with_capacity(nrows + 1);
    let (mut col_idx, mut values) = (Vec::new(), Vec::new());
    row_ptr.push(0);
    for i in 0..nrows {
        row(i, &mut |col, value| {
            col_idx.push(col);
            values.push(value);
        });
        row_ptr.push(col_idx.len());
    }
    // SAFETY: offsets rise by construction, and packed matrices only hold columns of a checked one.
    unsafe { CsrMatrix::new_unchecked(nrows, ncols, row_ptr, col_idx, values) }
}

macro_rules! registry {
    ($($module:ident => $Format:ident),+ $(,)?) => {
        /// The storage formats, in the order in which ties between plans are broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum FormatKind {
            $(#[doc = concat!("See [`", stringify!($module), "`].")] $Format),+
        }

        impl FormatKind {
            /// Every format.
            #[doc(hidden)]
            pub const ALL: &'static [Self] = &[$(Self::$Format),+];

            /// The format's name, as plans are spelled.
            #[doc(hidden)]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Format => stringify!($module)),+ }
            }

            /// One spelling of every kind of plan the format has.
            #[doc(hidden)]
            pub const fn examples(self) -> &'static [&'static str] {
                match self { $(Self::$Format => $module::$Format::EXAMPLES),+ }
            }
        }

        /// A format and its parameters: how to store a matrix and multiply with it.
        ///
        /// Has a spelling that `Display` writes and `FromStr` reads: `sell(c:32,sigma:512)`.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum Plan {
            $(#[doc = concat!("See [`", stringify!($module), "`].")] $Format($module::Plan)),+
        }

        impl Plan {
            /// The plan's format.
            #[doc(hidden)]
            pub const fn format(&self) -> FormatKind {
                match self { $(Self::$Format(_) => FormatKind::$Format),+ }
            }

            /// The kernel that runs the plan there: the key of its coefficients in a profile.
            #[doc(hidden)]
            pub fn kernel(&self, on: Target) -> &'static str {
                match self { $(Self::$Format(plan) => $module::$Format::kernel(plan, on)),+ }
            }

            /// What one product reads and does under this plan, without packing anything.
            #[doc(hidden)]
            pub fn traffic(&self, analysis: &Analysis, scalar: ScalarKind) -> Traffic {
                match self { $(Self::$Format(plan) => $module::$Format::traffic(plan, analysis, scalar)),+ }
            }

            /// Whether [`Plan::traffic`] tells the bytes of the packed matrix exactly. Otherwise no more than twice as many are packed.
            #[doc(hidden)]
            pub fn is_exact(&self, analysis: &Analysis) -> bool {
                match self { $(Self::$Format(plan) => $module::$Format::is_exact(plan, analysis)),+ }
            }

            /// Whether every product under this plan gives the same bits, on every device.
            pub fn is_deterministic(&self) -> bool {
                match self { $(Self::$Format(plan) => $module::$Format::deterministic(plan)),+ }
            }

            /// Whether packed values are in the order of the entries, in one array.
            pub(crate) fn keeps_order(&self) -> bool {
                match self { $(Self::$Format(plan) => $module::$Format::keeps_order(plan)),+ }
            }

            /// Whether it may be chosen for such a device, and not only be taken where it is given.
            #[doc(hidden)]
            pub fn is_eligible(&self, on: Target) -> bool {
                match self { $(Self::$Format(plan) => $module::$Format::eligible(plan, on)),+ }
            }

            /// Lower bound of the time of a product on a GPU, in µs, beside its bytes.
            pub(crate) fn floor_us(&self, analysis: &Analysis) -> f64 {
                match self.slices() {
                    Some((_, packing)) => packed::floor_us(packing, analysis),
                    None => match self { $(Self::$Format(plan) => $module::$Format::floor_us(plan, analysis)),+ },
                }
            }

            /// Every format's plans worth considering on a kind of device, in registry order.
            #[doc(hidden)]
            pub fn candidates(analysis: &Analysis, weights: &Weights, on: Target) -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend($module::$Format::candidates(analysis, weights, on).into_iter().map(Self::$Format));)+
                all
            }

            /// The order of the rows and the encoding, where the plan is packed slices and nothing else.
            pub(crate) fn slices(&self) -> Option<(Order, Packing)> {
                match self { $(Self::$Format(plan) => $module::$Format::slices(plan)),+ }
            }

            /// Packs a matrix.
            pub(crate) fn pack<T: Scalar>(&self, a: CsrView<'_, T>) -> Result<Box<dyn HostMatrix<T>>, Error> {
                match self { $(Self::$Format(plan) => Ok(Box::new($module::$Format::pack(plan, a)?))),+ }
            }

            fn parse(name: &str, args: &mut PlanArgs<'_>) -> Option<Result<Self, Error>> {
                match name {
                    $(stringify!($module) => Some($module::$Format::parse(args).map(Self::$Format)),)+
                    _ => None,
                }
            }
        }

        impl Display for Plan {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$Format(plan) => write!(f, "{}{plan}", stringify!($module))),+ }
            }
        }

        #[cfg(test)]
        mod conformance {
            $(crate::testing::format_suite!($module, $Format);)+
        }
    };
}
pub(crate) use registry;

impl Display for FormatKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Plan {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut args = PlanArgs::new(text)?;
        let name = args.name();
        let plan = Self::parse(name, &mut args).unwrap_or_else(|| Err(args.unknown_format()))?;
        args.finish()?;
        Ok(plan)
    }
}

impl Serialize for Plan {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
