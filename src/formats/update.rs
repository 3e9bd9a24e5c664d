//! New values on the same pattern: the slot of every entry in a packed matrix, and the scatter of
//! new values.
//!
//! To find the slots, a matrix of the same pattern is packed whose values are the indices of its
//! entries. A format therefore only exposes its arrays of values. Encoded values cannot hold
//! indices: a format that has them reports their slots itself.

use super::encoded::{coded, narrowed};
use super::resident::keep;
use super::sectors::{PER_THREAD, Sectors};
use super::{Arrays, NoValueSlots, Plan, ResidentMatrix, ValueArrays};
use crate::analysis::Fingerprint;
use crate::device::cpu::{Output, for_each_task, partition};
use crate::device::{DeviceVec, Gpu, Kernel, Launch, Numbers, Ptr, Queue, Stream, kernels};
use crate::matrix::{CsrMatrix, CsrView};
use crate::{Error, Precision, Scalar, memory};
use std::sync::Arc;

/// Replaces the values of one packed matrix.
#[derive(Debug)]
pub(crate) struct Updater {
    nnz: usize,
    pattern: Fingerprint,
    place: SlotMap,
    plan: String,
}

/// Slot of every entry, in the memory of the matrix. None if values are in the order of the
/// entries, or if one value is stored for all.
#[derive(Debug)]
enum SlotMap {
    Host(Option<Vec<u32>>),
    Gpu(Option<Arc<Sectors>>, Kernel),
}

impl Updater {
    /// Creates the updater for `matrix`. `a` is the matrix it was packed from or, if it was
    /// `edited` by [`Access::insert`](super::Access::insert), the result of unpacking it: rows that
    /// are longer than before would be packed elsewhere.
    ///
    /// # Errors
    ///
    /// [`Error::NotUpdatable`]; on a GPU the errors of allocation and compilation.
    pub(crate) fn new<T: Scalar>(
        plan: &Plan,
        matrix: &mut ResidentMatrix<T>,
        a: CsrView<'_, T>,
        edited: bool,
    ) -> Result<Self, Error> {
        let refused = |NoValueSlots(reason)| Error::NotUpdatable { plan: plan.to_string(), reason };
        let storage = matrix.storage().map_err(refused)?;
        let encoded = !matches!(storage, ValueArrays::Plain(_));
        let slots = match matrix {
            _ if plan.properties().keeps_order => None,
            _ if matches!(storage, ValueArrays::Codes(None, ())) => None,
            ResidentMatrix::Host(matrix) if edited || encoded => Some(matrix.slots(a)?),
            _ => Some(slots(plan, a, encoded)?),
        };
        let slots = slots.transpose().map_err(refused)?;
        let place = match matrix {
            ResidentMatrix::Host(_) => SlotMap::Host(slots),
            ResidentMatrix::Gpu(gpu, _) => {
                let slots = slots.map(|slots| Sectors::upload(*gpu, slots)).transpose()?;
                let kernel = match storage {
                    ValueArrays::Plain(_) => &*format!("update_{}", T::KIND),
                    ValueArrays::Codes(..) => "update_u8",
                    ValueArrays::Halves(..) => "update_u16",
                    ValueArrays::Singles(_) => "update_f32",
                };
                SlotMap::Gpu(slots, gpu.kernel("update", kernel)?)
            }
        };
        Ok(Self { nnz: a.nnz(), pattern: Fingerprint::of(a), place, plan: plan.to_string() })
    }

    /// Bytes of the slots, in the memory of the matrix.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.place {
            SlotMap::Host(slots) => slots.as_ref().map_or(0, |slots| size_of_val(&**slots) as u64),
            SlotMap::Gpu(slots, _) => slots.as_ref().map_or(0, |slots| slots.bytes()),
        }
    }

    /// Checks that a matrix has the pattern that this was made for.
    ///
    /// # Errors
    ///
    /// [`Error::OtherPattern`].
    pub(crate) fn check_pattern<T: Scalar>(&self, a: CsrView<'_, T>) -> Result<(), Error> {
        if a.nnz() == self.nnz && Fingerprint::of(a) == self.pattern {
            return Ok(());
        }
        let (nrows, ncols, nnz) = (a.nrows(), a.ncols(), a.nnz());
        Err(Error::OtherPattern { nrows, ncols, nnz, expected: self.nnz })
    }

    /// Replaces the values, after everything enqueued on a GPU is done. Blocking: the update is
    /// done on return.
    ///
    /// # Errors
    ///
    /// [`Error::ValuesLength`], [`Error::ValueInexact`]; [`Error::NotUpdatable`] if there are more
    /// values than codes for them; errors of the GPU.
    pub(crate) fn update<T: Scalar>(
        &self,
        matrix: &mut ResidentMatrix<T>,
        values: &[T],
    ) -> Result<(), Error> {
        const HAD: &str = "it had them when this was made";
        self.check_length(values.len())?;
        match (matrix, &self.place) {
            (ResidentMatrix::Host(matrix), SlotMap::Host(slots)) => {
                let slots = slots.as_deref();
                match matrix.values_mut().expect(HAD) {
                    ValueArrays::Plain(arrays) => scatter(slots, values, arrays),
                    ValueArrays::Halves(precision, arrays) => {
                        scatter(slots, &narrowed(values, precision, |bits| bits as u16)?, arrays);
                    }
                    ValueArrays::Singles(arrays) => {
                        scatter(slots, &narrowed(values, Precision::F32, f32::from_bits)?, arrays);
                    }
                    ValueArrays::Codes(arrays, dictionary) => {
                        let (codes, new) = self.coded(values, dictionary.len())?;
                        if let Some(arrays) = arrays {
                            scatter(slots, &codes, arrays);
                        }
                        dictionary.copy_from_slice(&new);
                    }
                }
                Ok(())
            }
            // SAFETY: the arrays have every slot, and nothing is enqueued while this runs.
            (ResidentMatrix::Gpu(gpu, matrix), SlotMap::Gpu(..)) => unsafe {
                match matrix.values().expect(HAD) {
                    ValueArrays::Plain(arrays) => self.upload_to_slots(*gpu, values, arrays),
                    ValueArrays::Halves(precision, arrays) => {
                        let values = narrowed(values, precision, |bits| bits as u16)?;
                        self.upload_to_slots(*gpu, &values, arrays)
                    }
                    ValueArrays::Singles(arrays) => {
                        let values = narrowed(values, Precision::F32, f32::from_bits)?;
                        self.upload_to_slots(*gpu, &values, arrays)
                    }
                    ValueArrays::Codes(arrays, dictionary) => {
                        let (codes, new) = self.coded(values, dictionary.len())?;
                        match arrays {
                            Some(arrays) => self.upload_to_slots(*gpu, &codes, arrays)?,
                            None => gpu.synchronize()?,
                        }
                        dictionary.write(gpu.queue(), &new)
                    }
                }
            },
            _ => unreachable!("a matrix stays on its device"),
        }
    }

    /// Codes of values, and the values of the codes, `room` in number.
    fn coded<T: Scalar>(&self, values: &[T], room: usize) -> Result<(Vec<u8>, Vec<T>), Error> {
        let reason = match room {
            1 => NoValueSlots::NOT_THE_SAME,
            _ => NoValueSlots::TOO_MANY_VALUES,
        };
        coded(values, room).ok_or_else(|| self.refused(reason))
    }

    /// Uploads values and scatters them to their slots, after everything enqueued on the GPU is
    /// done. Blocking: they are stored on return.
    ///
    /// # Safety
    ///
    /// There is a value for every entry; the arrays have every slot, and nothing else uses them
    /// meanwhile.
    unsafe fn upload_to_slots<N: Copy>(
        &self,
        gpu: Gpu,
        values: &[N],
        arrays: Arrays<Numbers<N>>,
    ) -> Result<(), Error> {
        gpu.synchronize()?;
        let (values, queue) = (gpu.upload(values)?, gpu.queue());
        // SAFETY: the caller's promise, and the wait outlasts the launch.
        unsafe { self.launch(queue, values.ptr(), arrays)? };
        queue.synchronize()
    }

    /// Replaces the values by values on the matrix's device; on a GPU this is only enqueued.
    ///
    /// # Errors
    ///
    /// [`Error::ValuesLength`], [`Error::WrongDevice`]; [`Error::NotUpdatable`] on a GPU if values
    /// are stored in fewer bytes or as codes; on the CPU the errors of [`update`](Self::update);
    /// errors of the GPU.
    pub(crate) fn enqueue<T: Scalar>(
        &self,
        matrix: &mut ResidentMatrix<T>,
        stream: &Stream,
        values: &DeviceVec<T>,
    ) -> Result<(), Error> {
        self.check_length(values.len())?;
        matrix.check_devices([("values", values.device()), ("stream", stream.device())])?;
        let (ResidentMatrix::Gpu(_, matrix), SlotMap::Gpu(slots, _), Some(queue)) =
            (&*matrix, &self.place, stream.queue())
        else {
            return self.update(matrix, values.host());
        };
        let arrays = matrix.values().and_then(ValueArrays::plain);
        let arrays = arrays.map_err(|_| self.refused(NoValueSlots::UNCHECKED))?;
        let _lock = queue.lock()?;
        keep(queue, matrix, [values]);
        if let (true, Some(slots)) = (queue.records(), slots) {
            queue.keep(slots.clone());
        }
        // SAFETY: the arrays have every slot. Freeing memory waits for work that uses it, and a
        // graph keeps it.
        unsafe { self.launch(queue, values.ptr(), arrays) }
    }

    /// Enqueues the kernel, on a GPU.
    ///
    /// # Safety
    ///
    /// There is a value for every entry; the values and the arrays, which have every slot, live
    /// until it is done.
    unsafe fn launch<N>(
        &self,
        queue: &Queue,
        values: Ptr<N>,
        [first, second]: Arrays<Numbers<N>>,
    ) -> Result<(), Error> {
        let SlotMap::Gpu(sectors, kernel) = &self.place else {
            unreachable!("only called on a GPU")
        };
        let (slots, (at, from)) = sectors
            .as_ref()
            .map_or((self.nnz, (Ptr::NULL, Ptr::NULL)), |sectors| (sectors.len(), sectors.ptrs()));
        let launch = Launch::over(slots.div_ceil(PER_THREAD), 1).with(kernels::update::Update {
            sectors: at,
            from,
            count: slots as u64,
            values,
            nnz: self.nnz as u64,
            first: first.0,
            split: first.1 as u64,
            second: second.0,
            slots: (first.1 + second.1) as u64,
        });
        // SAFETY: the kernel is `update`; the rest is the caller's promise.
        unsafe { kernel.launch(queue, launch) }
    }

    fn refused(&self, NoValueSlots(reason): NoValueSlots) -> Error {
        Error::NotUpdatable { plan: self.plan.clone(), reason }
    }

    fn check_length(&self, found: usize) -> Result<(), Error> {
        let expected = self.nnz;
        if found == expected { Ok(()) } else { Err(Error::ValuesLength { expected, found }) }
    }
}

/// Slot of every entry of `a` under a plan, or the reason why it is unknown. `encoded` if packed
/// values are.
fn slots<T: Scalar>(
    plan: &Plan,
    a: CsrView<'_, T>,
    encoded: bool,
) -> Result<Result<Vec<u32>, NoValueSlots>, Error> {
    /// Marks an entry without a slot.
    const NONE: u32 = u32::MAX;
    let nnz = a.nnz();
    if nnz as u64 >= u64::from(NONE) {
        return Ok(Err(NoValueSlots::TOO_MANY));
    }
    let number = |entry| match entry {
        // Two values, which every encoding holds; one alone would not be stored for every entry.
        0 if encoded => T::ONE,
        _ if encoded => T::ZERO,
        // Bits, so that an f32 holds them as exactly as an f64; 0 stands for padding.
        _ => T::from_bits(entry as u64 + 1),
    };
    let numbers = memory::listed((0..nnz).map(number))?;
    let (row_ptr, col_idx) = (memory::try_copied(a.row_ptr())?, memory::try_copied(a.col_idx())?);
    // SAFETY: the pattern is that of a checked matrix.
    let numbered =
        unsafe { CsrMatrix::new_unchecked(a.nrows(), a.ncols(), row_ptr, col_idx, numbers) };
    let mut packed = plan.pack(numbered.view())?;
    drop(numbered);
    if encoded {
        return packed.slots(a);
    }
    let arrays = match packed.values_mut().and_then(ValueArrays::plain) {
        Ok(arrays) => arrays,
        Err(reason) => return Ok(Err(reason)),
    };
    if arrays.iter().map(|array| array.len() as u64).sum::<u64>() >= u64::from(NONE) {
        return Ok(Err(NoValueSlots::TOO_MANY));
    }
    let mut slots = memory::filled(nnz, NONE)?;
    let out = Output::new(&mut slots);
    let mut before = 0;
    for array in arrays {
        for_each_task(&partition(array.len(), 1, |slot| slot as u64), |range| {
            for slot in range {
                let number = array[slot].bits() as usize;
                if (1..=nnz).contains(&number) {
                    // SAFETY: it is the number of an entry, and a packed matrix holds every entry
                    // exactly one time.
                    unsafe { out.set(number - 1, (before + slot) as u32) };
                }
            }
        });
        before += array.len();
    }
    if slots.contains(&NONE) { Ok(Err(NoValueSlots::NO_VALUE_SLOTS)) } else { Ok(Ok(slots)) }
}

/// Scatters the values of all entries to their slots.
fn scatter<N: Copy + Send + Sync>(
    slots: Option<&[u32]>,
    values: &[N],
    [first, second]: Arrays<&mut [N]>,
) {
    let Some(slots) = slots else {
        first.copy_from_slice(values);
        return;
    };
    let split = first.len();
    let (first, second) = (Output::new(first), Output::new(second));
    for_each_task(&partition(values.len(), 1, |entry| entry as u64), |range| {
        for entry in range {
            let slot = slots[entry] as usize;
            // SAFETY: every entry has a slot of its own in the arrays.
            unsafe {
                match slot.checked_sub(split) {
                    None => first.set(slot, values[entry]),
                    Some(slot) => second.set(slot, values[entry]),
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::gallery::Spec;

    #[test]
    fn matrices_of_one_pattern_and_encoding_have_the_same_slots() {
        let spec: Spec = "femrandom,nodes=300".parse().unwrap();
        let mut a: CsrMatrix<f64> = spec.generate().unwrap();
        a.values_mut().iter_mut().enumerate().for_each(|(k, value)| *value = (k % 7) as f64);
        for parameters in ["packed", "f16,split:20", "f32,sigma:512,group:1", "packed,split:1"] {
            let plan: Plan = format!("psell(values:{parameters})").parse().unwrap();
            let mut packed = plan.pack(a.view()).unwrap();
            assert!(packed.values_mut().unwrap().plain().is_err(), "{plan} encodes these values");
            let own = packed.slots(a.view()).unwrap().unwrap();
            assert!(own.iter().any(|&slot| slot > 0), "{plan}");
            assert_eq!(slots(&plan, a.view(), true).unwrap().unwrap(), own, "{plan}");
        }
    }
}
