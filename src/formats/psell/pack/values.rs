//! Storage of values: the distinct values, found on the GPU.

use super::super::{Coder, DeviceValues, ValueEncoding};
use super::Packer;
use crate::analysis::Analysis;
use crate::analysis::value_set::{VALUE_SLOTS, ValueSet};
use crate::device::kernels::analysis::Distinct;
use crate::device::{Buffer, Launch, Ptr};
use crate::{Error, Scalar};

/// Hash table from values to codes, for the kernels.
pub(super) struct CodeTable {
    keys: Buffer<u64>,
    codes: Buffer<u8>,
}

impl CodeTable {
    /// The addresses of keys and codes of a table, or null for none.
    pub(super) fn ptrs(table: &Option<Self>) -> (Ptr<u64>, Ptr<u8>) {
        table.as_ref().map_or((Ptr::NULL, Ptr::NULL), |table| (table.keys.ptr(), table.codes.ptr()))
    }
}

impl<T: Scalar> Packer<'_, T> {
    /// Returns the coder of the values. Synchronises if the distinct values have to be found.
    pub(super) fn coder(&self, values: ValueEncoding) -> Result<Coder<T>, Error> {
        if values != ValueEncoding::Packed {
            return Ok(Coder::Plain);
        }
        /// Blocks per multiprocessor: few, so that each finds many values before it adds its own to
        /// the shared table.
        const BLOCKS: usize = 8;
        let all = &self.a.values;
        let (slots, counts) =
            (self.work.cleared::<u64>(VALUE_SLOTS)?, self.work.cleared::<u32>(2)?);
        let most = Launch::over(BLOCKS * self.a.gpu.multiprocessors(), crate::device::BLOCK);
        let over = Launch::over(all.len().min(most.blocks() as usize * most.threads() as usize), 1);
        let (module, name) = Analysis::distinct_kernel::<T>();
        let (values, count) = (all.ptr(), all.len() as u64);
        let launch = over.with(Distinct { values, count, slots, counts });
        // SAFETY: the table has `VALUE_SLOTS` places and two counts.
        unsafe { self.work.run(module.file, &name, launch)? };
        let (mut table, mut read_counts) = (Box::new([0; VALUE_SLOTS]), [0; 2]);
        self.work.read(counts, &mut read_counts)?;
        self.work.read(slots, &mut table[..])?;
        let [others, zero] = read_counts;
        Ok(Coder::of_set(&ValueSet::from_table(table, others as usize, zero != 0)))
    }

    /// Uploads the table of a coder with a dictionary.
    pub(super) fn table(&self, coder: &Coder<T>) -> Result<Option<CodeTable>, Error> {
        let Coder::Dictionary(dictionary) = coder else { return Ok(None) };
        let (keys, codes) = dictionary.table();
        Ok(Some(CodeTable { keys: self.a.gpu.upload(keys)?, codes: self.a.gpu.upload(codes)? }))
    }

    /// Allocates zeroed arrays: `words` words, and `len` values of a coder.
    pub(super) fn allocate(
        &self,
        coder: &Coder<T>,
        words: usize,
        len: usize,
    ) -> Result<(Buffer<u32>, DeviceValues<T>), Error> {
        Ok(match coder {
            Coder::Plain | Coder::Narrow(_) => {
                let (words, values) = self.work.output_pair((words, len))?;
                (words, DeviceValues::Plain(values))
            }
            Coder::Dictionary(_) => {
                let (words, codes) = self.work.output_pair((words, len))?;
                (words, DeviceValues::Codes(codes))
            }
            Coder::Same(_) => (self.work.output(words)?, DeviceValues::Same),
        })
    }
}
