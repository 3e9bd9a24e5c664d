//! Implementation of the operator, compiled in this library for each [`Scalar`].
//!
//! A generic function is compiled in the crate that calls it, with everything below it: kernels,
//! formats, calibration. The public functions are therefore thin: they convert their arguments and
//! call one of [`Compiled`], whose implementations are not generic. `SparseOp::apply` on the CPU
//! calls the packed matrix itself, behind a pointer.

use crate::analysis::{Analysis, Symmetry};
use crate::device::cpu::prepare_threads;
use crate::device::fused::{Code, Combine, Dots, Passes, Step};
use crate::device::{Device, DeviceVec, Factor, ForeignCsr, Stream};
use crate::formats::{self, Multivector, Plan};
use crate::matrix::gallery::Spec;
use crate::matrix::market::{self, MarketEntries, MarketPieces, Reader};
use crate::matrix::{CsrCow, CsrMatrix, CsrView, Triplets};
use crate::tuning::{PackedPlan, PlanBench};
use crate::{Error, Precision, Scalar, SparseOp, SparseOpBuilder};
use std::path::Path;

/// Declares [`Compiled`] from a table, and implements it for every scalar type.
macro_rules! compiled {
    (@declare $(
        fn $name:ident($($arg:ident: $type:ty),+) -> $result:ty = $generic:expr;
    )+) => {
        /// Functions that the public ones call.
        pub trait Compiled: Sized {
            $(
                #[doc(hidden)]
                fn $name($($arg: $type),+) -> $result where Self: Scalar;
            )+
        }
    };
    (@implement $scalar:ident $(
        fn $name:ident($($arg:ident: $type:ty),+) -> $result:ty = $generic:expr;
    )+) => {
        impl Compiled for $scalar {
            $(
                // An inlined function is compiled in the caller's crate again.
                #[inline(never)]
                fn $name($($arg: $type),+) -> $result {
                    prepare_threads();
                    $generic($($arg),+)
                }
            )+
        }
    };
    ($($table:tt)+) => {
        compiled!(@declare $($table)+);
        compiled!(@implement f32 $($table)+);
        compiled!(@implement f64 $($table)+);
    };
}

compiled! {
    fn analyze(a: CsrView<'_, Self>) -> Analysis = formats::analyze;
    fn symmetry(a: CsrView<'_, Self>) -> Result<Symmetry, Error> = Symmetry::of_impl;

    fn transpose(a: CsrView<'_, Self>)
        -> Result<CsrMatrix<Self>, Error> = CsrView::transpose_impl;
    fn assemble(a: &Triplets<Self>)
        -> Result<CsrMatrix<Self>, Error> = Triplets::to_csr_impl;
    fn round(a: CsrView<'_, Self>, to: Precision)
        -> Result<CsrCow<'_, Self>, Error> = CsrView::rounded_to_impl;
    fn generate(spec: &Spec) -> Result<CsrMatrix<Self>, Error> = Spec::generate_impl;
    fn read_market(reader: &Reader<'_>, path: &Path)
        -> Result<CsrMatrix<Self>, Error> = Reader::read_impl;
    fn parse_market(reader: &Reader<'_>, text: &[u8])
        -> Result<CsrMatrix<Self>, Error> = Reader::parse_impl;
    fn market_entries(pieces: &MarketPieces, path: &Path, lines: &[u8])
        -> Result<MarketEntries<Self>, Error> = MarketPieces::entries_impl;
    fn write_market(path: &Path, a: CsrView<'_, Self>) -> Result<(), Error> = market::write_impl;
    fn read_vector(path: &Path, len: Option<usize>)
        -> Result<Vec<Self>, Error> = market::read_vector_impl;
    fn write_vector(path: &Path, vector: &[Self]) -> Result<(), Error> = market::write_vector_impl;

    fn vector_zeros(device: &Device, len: usize)
        -> Result<DeviceVec<Self>, Error> = DeviceVec::zeros_impl;
    fn vector_from(device: &Device, data: &[Self])
        -> Result<DeviceVec<Self>, Error> = DeviceVec::from_slice_impl;
    fn vector_copy_from(to: &mut DeviceVec<Self>, data: &[Self])
        -> Result<(), Error> = DeviceVec::copy_from_impl;
    fn vector_copy_to(from: &DeviceVec<Self>, data: &mut [Self])
        -> Result<(), Error> = DeviceVec::copy_to_impl;
    fn foreign_to_csr(a: &ForeignCsr<Self>, stream: &Stream)
        -> Result<CsrMatrix<Self>, Error> = ForeignCsr::to_csr_impl;
    fn passes(stream: &Stream, registers: usize, code: Code)
        -> Result<Passes<Self>, Error> = Passes::new_impl;
    fn dots(passes: &mut Passes<Self>, pass: Dots<'_, Self>)
        -> Result<(), Error> = Passes::dots_impl;
    fn combine(passes: &mut Passes<Self>, y: &mut DeviceVec<Self>, pass: Combine<'_, Self>)
        -> Result<(), Error> = Passes::combine_impl;
    fn step(
        passes: &mut Passes<Self>, x: &mut DeviceVec<Self>, p: &mut DeviceVec<Self>,
        pass: Step<'_, Self>
    ) -> Result<(), Error> = Passes::step_impl;

    fn build(builder: &SparseOpBuilder, a: CsrView<'_, Self>)
        -> Result<SparseOp<Self>, Error> = SparseOpBuilder::build_impl;
    fn build_analyzed(builder: &SparseOpBuilder, a: CsrView<'_, Self>, analysis: &Analysis)
        -> Result<SparseOp<Self>, Error> = SparseOpBuilder::build_analyzed_impl;
    fn build_from_device(builder: &SparseOpBuilder, stream: &Stream, a: &ForeignCsr<Self>)
        -> Result<SparseOp<Self>, Error> = SparseOpBuilder::build_from_device_impl;
    fn apply_staged(op: &SparseOp<Self>, x: &[Self], y: &mut [Self])
        -> Result<(), Error> = SparseOp::apply_staged_impl;
    fn apply_scaled(op: &SparseOp<Self>, alpha: Self, x: &[Self], beta: Self, y: &mut [Self])
        -> Result<(), Error> = SparseOp::apply_with_impl;
    fn apply_device(
        op: &SparseOp<Self>, stream: &Stream, x: &DeviceVec<Self>, y: &mut DeviceVec<Self>
    ) -> Result<(), Error> = SparseOp::apply_device_impl;
    fn apply_device_scaled(
        op: &SparseOp<Self>, stream: &Stream, alpha: Factor<'_, Self>, x: &DeviceVec<Self>,
        beta: Factor<'_, Self>, y: &mut DeviceVec<Self>
    ) -> Result<(), Error> = SparseOp::apply_device_with_impl;
    fn apply_multi(
        op: &SparseOp<Self>, alpha: Self, x: Multivector<&[Self]>, beta: Self,
        y: Multivector<&mut [Self]>
    ) -> Result<(), Error> = SparseOp::apply_multi_impl;
    fn apply_multi_device(
        op: &SparseOp<Self>, stream: &Stream, alpha: Factor<'_, Self>,
        x: Multivector<&DeviceVec<Self>>, beta: Factor<'_, Self>,
        y: Multivector<&mut DeviceVec<Self>>
    ) -> Result<(), Error> = SparseOp::apply_multi_device_impl;
    fn transposed(op: &SparseOp<Self>)
        -> Result<&SparseOp<Self>, Error> = SparseOp::transposed_impl;
    fn to_csr(op: &SparseOp<Self>) -> Result<CsrMatrix<Self>, Error> = SparseOp::to_csr_impl;
    fn update_values(op: &mut SparseOp<Self>, values: &[Self])
        -> Result<(), Error> = SparseOp::update_values_impl;
    fn update_from(op: &mut SparseOp<Self>, a: CsrView<'_, Self>)
        -> Result<(), Error> = SparseOp::update_from_impl;
    fn update_values_device(op: &mut SparseOp<Self>, stream: &Stream, values: &DeviceVec<Self>)
        -> Result<(), Error> = SparseOp::update_values_device_impl;
    fn get(op: &SparseOp<Self>, row: usize, col: usize)
        -> Result<Option<Self>, Error> = SparseOp::get_impl;
    fn row(op: &SparseOp<Self>, row: usize)
        -> Result<Vec<(usize, Self)>, Error> = SparseOp::row_impl;
    fn insert(op: &mut SparseOp<Self>, row: usize, col: usize, value: Self)
        -> Result<Option<Self>, Error> = SparseOp::insert_impl;

    fn bench_pack(bench: &PlanBench<'_, Self>, plan: &Plan)
        -> Result<PackedPlan<Self>, Error> = PlanBench::pack_impl;
    fn bench_products(bench: &PlanBench<'_, Self>, packed: &PackedPlan<Self>, repeats: u32)
        -> Result<f64, Error> = PlanBench::products_impl;
}
