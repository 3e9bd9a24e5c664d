//! Products of a part on a GPU.

use crate::comm::{Communicator, agree, gather_words};
use crate::halo::Halo;
use crate::rows::RowSet;
use sparseop::device::peers::{
    Neighbour, PeerExchange, PeerGroup, PeerInbox, RowPlaces, UsedElements,
};
use sparseop::{Device, DeviceVec, Error, Multivector, Scalar, Stream};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of a part and their messages.
#[derive(Clone, Copy)]
pub(crate) struct PartRows<'a, T: Scalar> {
    pub(crate) comm: &'a dyn Communicator,
    pub(crate) halo: &'a Halo,
    /// First own column.
    pub(crate) first: u32,
    /// Interior and boundary rows.
    pub(crate) sets: [&'a RowSet<T>; 2],
}

/// State of the products of a part on a GPU, besides the operators of its rows.
#[derive(Debug)]
pub(crate) struct GpuPart<T: Scalar> {
    group: Arc<PeerGroup>,
    device: Device,
    /// Stream of products with vectors in host memory.
    stream: Stream,
    /// Places of the interior and of the boundary rows, unless they are consecutive.
    places: [Option<RowPlaces>; 2],
    /// Working memory for each number of vectors, kept as long as the part.
    memory: Mutex<HashMap<usize, GpuMemory<T>>>,
}

/// Working memory of products with a number of vectors.
#[derive(Debug)]
struct GpuMemory<T: Scalar> {
    exchange: PeerExchange<T>,
    /// Elements of `x` that boundary rows use.
    used: DeviceVec<T>,
    /// Products of rows that are not consecutive.
    products: [DeviceVec<T>; 2],
    /// Vectors of products in host memory.
    vectors: Option<[DeviceVec<T>; 2]>,
}

impl<T: Scalar> GpuPart<T> {
    /// Prepares the products of a part, together with the other parts.
    pub(crate) fn new(part: PartRows<'_, T>, group: &Arc<PeerGroup>) -> Result<Self, Error> {
        let PartRows { comm, sets, .. } = part;
        let prepared = || {
            let device = group.device(comm.rank());
            let places = |set: &RowSet<T>| match set.consecutive() {
                Some(_) => Ok(None),
                None => RowPlaces::new(&device, &set.rows).map(Some),
            };
            let (stream, memory) = (Stream::new(&device)?, Mutex::default());
            let places = [places(sets[0])?, places(sets[1])?];
            Ok(Self { group: group.clone(), stream, places, memory, device })
        };
        let own = agree(comm, prepared())?;
        own.with_memory(part, 1, |_| Ok(()))?;
        Ok(own)
    }

    /// Returns an error if a GPU has failed, or has waited for another one beyond the time limit.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.group.check()
    }

    /// Calls `body` with the working memory for `count` vectors. The first call with a number is
    /// collective: all parts allocate.
    fn with_memory<R>(
        &self,
        part: PartRows<'_, T>,
        count: usize,
        body: impl FnOnce(&mut GpuMemory<T>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        body(match memory.entry(count) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.new_memory(part, count)?),
        })
    }

    /// Allocates working memory for `count` vectors, and agrees with the other parts on the memory
    /// of their messages.
    fn new_memory(&self, part: PartRows<'_, T>, count: usize) -> Result<GpuMemory<T>, Error> {
        let PartRows { comm, halo, sets, .. } = part;
        let exchange = self.exchange(part, count)?;
        let allocated = || {
            let zeros = |len: usize| DeviceVec::zeros(&self.device, len * count);
            let rows = |at: usize| self.places[at].as_ref().map_or(0, |_| sets[at].rows.len());
            let products = |at| zeros(rows(at));
            let (used, products) = (zeros(halo.width())?, [products(0)?, products(1)?]);
            Ok(GpuMemory { exchange, used, products, vectors: None })
        };
        agree(comm, allocated())
    }

    /// Allocates the inbox of messages with elements of `count` vectors, and exchanges the
    /// addresses of all inboxes.
    fn exchange(&self, part: PartRows<'_, T>, count: usize) -> Result<PeerExchange<T>, Error> {
        let PartRows { comm, halo, first, .. } = part;
        let (rank, neighbours) = (comm.rank(), halo.neighbours());
        // An inbox has a half for even and one for odd rounds.
        let half = halo.received() * count;
        let inbox = PeerInbox::new(&self.group, rank, half, neighbours.len());
        let inbox = agree(comm, inbox)?;
        // The place of each rank in the inbox, and the number of its flag.
        let mut ranks = vec![[0; 2]; comm.size()];
        for (rank, range) in &halo.receives {
            let behind = if range.start < halo.own.end { 0 } else { halo.own.len() };
            ranks[*rank][0] = ((range.start - behind) * count) as u64;
        }
        (0u64..).zip(&neighbours).for_each(|(flag, &rank)| ranks[rank][1] = flag);
        let [elements, flags] = inbox.addresses();
        let own: Vec<u64> =
            [elements, flags, half as u64].into_iter().chain(ranks.into_iter().flatten()).collect();
        let all = gather_words(comm, &own)?;
        let sends = |to: usize| halo.sends.iter().find(|send| send.0 == to);
        let of = |&to: &usize| {
            let [elements, flags, half] = [all[to][0], all[to][1], all[to][2]];
            let [place, flag] = [all[to][3 + 2 * rank], all[to][4 + 2 * rank]];
            Neighbour {
                elements: sends(to).map_or_else(Vec::new, |send| send.1.clone()),
                place: elements + place * size_of::<T>() as u64,
                half,
                flag: flags + flag * size_of::<u32>() as u64,
            }
        };
        let to: Vec<Neighbour> = neighbours.iter().map(of).collect();
        let own = halo.columns[halo.own.clone()].iter();
        let used = UsedElements {
            own: own.map(|&column| column - first).collect(),
            own_place: halo.own.start,
            places: halo.places(),
            len: halo.width(),
        };
        // SAFETY: the ranks have just made these inboxes, with room for what they receive.
        let exchange = unsafe { PeerExchange::new(inbox, &to, used, count) };
        agree(comm, exchange)
    }

    /// Enqueues the product of `count` vectors in row-major order.
    pub(crate) fn multiply(
        &self,
        part: PartRows<'_, T>,
        stream: &Stream,
        count: usize,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        self.with_memory(part, count, |memory| self.enqueue(part, memory, stream, count, x, y))
    }

    /// Enqueues a product: sends elements, multiplies interior rows, receives elements, multiplies
    /// boundary rows.
    fn enqueue(
        &self,
        part: PartRows<'_, T>,
        memory: &mut GpuMemory<T>,
        stream: &Stream,
        count: usize,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        let GpuMemory { exchange, used, products: [interior, boundary], .. } = memory;
        let [of_interior, of_boundary] = &self.places;
        exchange.send(stream, x)?;
        part.sets[0].enqueue(stream, count, x, y, interior, of_interior.as_ref())?;
        exchange.receive(stream, x, used)?;
        part.sets[1].enqueue(stream, count, used, y, boundary, of_boundary.as_ref())
    }

    /// Multiplies `count` vectors in host memory, in row-major order.
    pub(crate) fn apply(
        &self,
        part: PartRows<'_, T>,
        count: usize,
        x: &[T],
        y: &mut [T],
    ) -> Result<(), Error> {
        self.with_memory(part, count, |memory| {
            let zeros = |len| DeviceVec::zeros(&self.device, len);
            let [mut on_x, mut on_y] = match memory.vectors.take() {
                Some(vectors) => vectors,
                None => [zeros(x.len())?, zeros(y.len())?],
            };
            on_x.copy_from(x)?;
            self.enqueue(part, memory, &self.stream, count, &on_x, &mut on_y)?;
            self.stream.synchronize()?;
            self.check()?;
            on_y.copy_to(y)?;
            memory.vectors = Some([on_x, on_y]);
            Ok(())
        })
    }
}

impl<T: Scalar> RowSet<T> {
    /// Enqueues the product of these rows with `count` vectors in row-major order.
    fn enqueue(
        &self,
        stream: &Stream,
        count: usize,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
        products: &mut DeviceVec<T>,
        places: Option<&RowPlaces>,
    ) -> Result<(), Error> {
        let multiply = |y: &mut DeviceVec<T>| {
            let (x, y) = (Multivector::row_major(x, count), Multivector::row_major(y, count));
            self.op.apply_multi_device(stream, x, y)
        };
        match (self.consecutive(), places) {
            (Some(rows), _) => y.with_part(rows.start * count..rows.end * count, multiply),
            (None, Some(places)) => {
                multiply(products)?;
                places.place(stream, products, y, count)
            }
            (None, None) => Ok(()),
        }
    }
}
