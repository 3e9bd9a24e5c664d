//! New values on the same pattern: the slot of every entry in a packed matrix, and the scatter of
//! new values.
//!
//! To find the slots, a matrix of the same pattern is packed whose values are the indices of its
//! entries. A format therefore only exposes its arrays of values. Encoded values cannot hold
//! indices; formats that have them report their slots themselves.

use super::encoded::{Narrowed, coded, narrowed};
use super::resident::keep;
use super::units::{PER_THREAD, Units};
use super::{Access, Arrays, NoArrays, NoValueSlots, Plan, ResidentMatrix, ValueStorage};
use crate::analysis::Fingerprint;
use crate::device::cpu::{Output, for_each_part, partition};
use crate::device::{DeviceVec, Gpu, Kernel, Launch, Ptr, Queue, Stream, kernels};
use crate::matrix::{CsrMatrix, CsrView};
use crate::{Error, Precision, Scalar, memory};
use std::sync::Arc;

/// Replaces the values of one packed matrix.
#[derive(Debug)]
pub(crate) struct Updater {
    nnz: usize,
    pattern: Fingerprint,
    place: SlotMap,
    storage: ValueStorage,
    plan: String,
}

/// Slot of every entry, in the memory of the matrix. None if values are in the order of the
/// entries, or if one value is stored for all.
#[derive(Debug)]
enum SlotMap {
    Host(Option<Vec<u32>>),
    Gpu(Option<Arc<Units>>, Kernel),
}

impl SlotMap {
    /// Slots of encoded values. None if there are too many to count.
    fn encoded<T: Scalar>(
        matrix: &mut ResidentMatrix<T>,
        storage: ValueStorage,
    ) -> Result<Option<Self>, Error> {
        let kind = match storage {
            ValueStorage::Narrow(Precision::F32) => "f32",
            ValueStorage::Narrow(_) => "u16",
            _ => "u8",
        };
        Ok(match matrix {
            ResidentMatrix::Host(_) if storage == ValueStorage::Coded(1) => Some(Self::Host(None)),
            ResidentMatrix::Gpu(gpu, _) if storage == ValueStorage::Coded(1) => {
                Some(Self::Gpu(None, gpu.kernel("update", "update_u8")?))
            }
            ResidentMatrix::Host(matrix) => {
                let slots = matrix.encoded_mut().map(|encoded| encoded.slots()).transpose()?;
                slots.flatten().map(|slots| Self::Host(Some(slots)))
            }
            ResidentMatrix::Gpu(gpu, matrix) => {
                let Some(encoded) = matrix.encoded() else { return Ok(None) };
                let Some(slots) = encoded.slots()? else { return Ok(None) };
                let kernel = gpu.kernel("update", &format!("update_{kind}"))?;
                Some(Self::Gpu(Some(Units::upload(*gpu, slots)?), kernel))
            }
        })
    }
}

impl Updater {
    /// Creates the updater for `matrix`. `a` is the matrix it was packed from or, if it was
    /// `edited` by [`Access::insert`], the result of unpacking it: rows that are longer than before
    /// would be packed elsewhere.
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
        let storage = matrix.storage();
        let made = |place| Self {
            nnz: a.nnz(),
            pattern: Fingerprint::of(a),
            place,
            storage,
            plan: plan.to_string(),
        };
        if storage != ValueStorage::Plain {
            return SlotMap::encoded(matrix, storage)?
                .map(made)
                .ok_or_else(|| refused(NoValueSlots::TOO_MANY));
        }
        let gpu = match matrix {
            ResidentMatrix::Host(matrix) => {
                matrix.values_mut().map(|_| None).map_err(NoArrays::reason)
            }
            ResidentMatrix::Gpu(gpu, matrix) => {
                matrix.values().map(|_| Some(*gpu)).map_err(NoArrays::reason)
            }
        };
        let gpu = gpu.map_err(refused)?;
        let slots = match matrix {
            _ if plan.properties().keeps_order => None,
            ResidentMatrix::Host(matrix) if edited => {
                let access =
                    matrix.access().ok_or_else(|| refused(NoValueSlots::NO_VALUE_SLOTS))?;
                Some(slots_by_row(access, a).map_err(refused)?)
            }
            _ => Some(slots(plan, a)?.map_err(refused)?),
        };
        let place = match gpu {
            None => SlotMap::Host(slots),
            Some(gpu) => {
                let slots = slots.map(|slots| Units::upload(gpu, slots)).transpose()?;
                SlotMap::Gpu(slots, gpu.kernel("update", &format!("update_{}", T::KIND))?)
            }
        };
        Ok(made(place))
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
        self.check_length(values.len())?;
        match self.storage {
            ValueStorage::Plain => {}
            ValueStorage::Narrow(precision) => {
                let inexact = |entry: usize| Error::ValueInexact {
                    entry,
                    value: values[entry].to_f64(),
                    precision,
                };
                return self.update_narrow(matrix, narrowed(values, precision).map_err(inexact)?);
            }
            ValueStorage::Coded(room) => {
                let reason = if room == 1 {
                    NoValueSlots::NOT_THE_SAME
                } else {
                    NoValueSlots::TOO_MANY_VALUES
                };
                let (codes, dictionary) =
                    coded(values, room).ok_or_else(|| self.refused(reason))?;
                return self.update_coded(matrix, &codes, dictionary);
            }
        }
        match (matrix, &self.place) {
            (ResidentMatrix::Host(matrix), SlotMap::Host(slots)) => {
                let arrays = matrix.values_mut().expect("it had them when this was made");
                scatter(slots.as_deref(), values, arrays);
                Ok(())
            }
            (ResidentMatrix::Gpu(gpu, matrix), SlotMap::Gpu(..)) => {
                gpu.synchronize()?;
                let arrays = matrix.values().expect("as above");
                // SAFETY: the arrays have every slot, and nothing else is running.
                unsafe { self.upload_to_slots(*gpu, values, arrays) }
            }
            _ => unreachable!("a matrix stays on its device"),
        }
    }

    /// Replaces values that are stored in fewer bytes.
    fn update_narrow<T: Scalar>(
        &self,
        matrix: &mut ResidentMatrix<T>,
        values: Narrowed<Vec<u16>, Vec<f32>>,
    ) -> Result<(), Error> {
        match (matrix, &self.place) {
            (ResidentMatrix::Host(matrix), SlotMap::Host(slots)) => {
                let slots = slots.as_deref();
                match (values, matrix.encoded_mut().and_then(|encoded| encoded.narrow_mut())) {
                    (Narrowed::Halves(values), Some(Narrowed::Halves(arrays))) => {
                        scatter(slots, &values, arrays)
                    }
                    (Narrowed::Singles(values), Some(Narrowed::Singles(arrays))) => {
                        scatter(slots, &values, arrays)
                    }
                    _ => unreachable!("it had them when this was made"),
                }
                Ok(())
            }
            (ResidentMatrix::Gpu(gpu, matrix), SlotMap::Gpu(..)) => {
                gpu.synchronize()?;
                // SAFETY: the arrays have every slot, and nothing else is running.
                unsafe {
                    match (values, matrix.encoded().and_then(|encoded| encoded.narrow())) {
                        (Narrowed::Halves(values), Some(Narrowed::Halves(arrays))) => {
                            self.upload_to_slots(*gpu, &values, arrays)
                        }
                        (Narrowed::Singles(values), Some(Narrowed::Singles(arrays))) => {
                            self.upload_to_slots(*gpu, &values, arrays)
                        }
                        _ => unreachable!("it had them when this was made"),
                    }
                }
            }
            _ => unreachable!("a matrix stays on its device"),
        }
    }

    /// Replaces codes and their dictionary, or the common value of all entries.
    fn update_coded<T: Scalar>(
        &self,
        matrix: &mut ResidentMatrix<T>,
        codes: &[u8],
        dictionary: Vec<T>,
    ) -> Result<(), Error> {
        match (matrix, &self.place) {
            (ResidentMatrix::Host(matrix), SlotMap::Host(slots)) => {
                let encoded = matrix.encoded_mut().expect("it was when this was made");
                if let Some(arrays) = encoded.codes_mut() {
                    scatter(slots.as_deref(), codes, arrays);
                }
                encoded.set_dictionary(dictionary);
                Ok(())
            }
            (ResidentMatrix::Gpu(gpu, matrix), SlotMap::Gpu(..)) => {
                gpu.synchronize()?;
                let encoded = matrix.encoded().expect("as above");
                if let Some(arrays) = encoded.codes() {
                    // SAFETY: the arrays have every slot, and nothing else is running.
                    unsafe { self.upload_to_slots(*gpu, codes, arrays)? };
                }
                encoded.write_dictionary(gpu.queue(), &dictionary)
            }
            _ => unreachable!("a matrix stays on its device"),
        }
    }

    /// Uploads values and scatters them to their slots. Blocking: they are stored on return.
    ///
    /// # Safety
    ///
    /// There is a value for every entry; the arrays have every slot, and nothing else uses them
    /// meanwhile.
    unsafe fn upload_to_slots<N: Copy>(
        &self,
        gpu: Gpu,
        values: &[N],
        arrays: Arrays<(Ptr<N>, usize)>,
    ) -> Result<(), Error> {
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
        if self.storage != ValueStorage::Plain {
            return Err(self.refused(NoValueSlots::UNCHECKED));
        }
        let _lock = queue.lock()?;
        keep(queue, matrix, [values]);
        if let (true, Some(slots)) = (queue.records(), slots) {
            queue.keep(slots.clone());
        }
        let arrays = matrix.values().expect("it had them when this was made");
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
        [first, second]: Arrays<(Ptr<N>, usize)>,
    ) -> Result<(), Error> {
        let SlotMap::Gpu(units, kernel) = &self.place else { unreachable!("only called on a GPU") };
        let (slots, (at, from)) = units
            .as_ref()
            .map_or((self.nnz, (Ptr::NULL, Ptr::NULL)), |units| (units.len(), units.ptrs()));
        let launch = Launch::over(slots.div_ceil(PER_THREAD), 1).with(kernels::update::Update {
            units: at,
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

/// Slot of every entry of `a` under a plan, or the reason why it is unknown.
fn slots<T: Scalar>(
    plan: &Plan,
    a: CsrView<'_, T>,
) -> Result<Result<Vec<u32>, NoValueSlots>, Error> {
    /// Marks an entry without a slot.
    const NONE: u32 = u32::MAX;
    let nnz = a.nnz();
    if nnz as u64 >= u64::from(NONE) {
        return Ok(Err(NoValueSlots::TOO_MANY));
    }
    // Bits, so that an f32 holds them as exactly as an f64; 0 stands for padding.
    let numbers = memory::listed((0..nnz).map(|entry| T::from_bits(entry as u64 + 1)))?;
    let (row_ptr, col_idx) = (memory::try_copied(a.row_ptr())?, memory::try_copied(a.col_idx())?);
    // SAFETY: the pattern is that of a checked matrix.
    let numbered =
        unsafe { CsrMatrix::new_unchecked(a.nrows(), a.ncols(), row_ptr, col_idx, numbers) };
    let mut packed = plan.pack(numbered.view())?;
    drop(numbered);
    let arrays = match packed.values_mut() {
        Ok(arrays) => arrays,
        Err(instead) => return Ok(Err(instead.reason())),
    };
    if arrays.iter().map(|array| array.len() as u64).sum::<u64>() >= u64::from(NONE) {
        return Ok(Err(NoValueSlots::TOO_MANY));
    }
    let mut slots = memory::filled(nnz, NONE)?;
    let out = Output::new(&mut slots);
    let mut before = 0;
    for array in arrays {
        for_each_part(&partition(array.len(), 1, |slot| slot as u64), |range| {
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

/// Slot of every entry of `a`, as reported by the matrix.
fn slots_by_row<T: Scalar>(
    matrix: &dyn Access<T>,
    a: CsrView<'_, T>,
) -> Result<Vec<u32>, NoValueSlots> {
    if u32::try_from(matrix.slot_count()).is_err() {
        return Err(NoValueSlots::TOO_MANY);
    }
    let mut slots = Vec::with_capacity(a.nnz());
    (0..a.nrows()).for_each(|row| matrix.visit_row(row, &mut |slot, _, _| slots.push(slot as u32)));
    Ok(slots)
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
    for_each_part(&partition(values.len(), 1, |entry| entry as u64), |range| {
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
