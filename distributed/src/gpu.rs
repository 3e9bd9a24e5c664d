//! Products of a part on a GPU.

use crate::comm::{Communicator, agree, gather_words};
use crate::halo::Halo;
use crate::rows::RowSet;
use sparseop::device::SideStream;
use sparseop::device::peers::{
    Neighbour, PLACE_WORDS, PeerExchange, PeerGroup, PeerInbox, RowPlaces, UsedElements,
};
use sparseop::{Device, DeviceVec, Error, Multivector, Scalar, Stream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// Entries of interior rows whose product takes longer than to begin and end work on another
/// stream.
const LONG_INTERIOR: u64 = 1_000_000;

/// True if a part multiplies its interior rows while the parts exchange elements, false if before
/// or after that.
pub(crate) fn overlaps(device: &Device, interior_entries: u64) -> bool {
    *device == Device::Cpu || interior_entries >= LONG_INTERIOR
}

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
    /// Stream of the messages and the boundary rows, beside interior rows that take longer than a
    /// few launches.
    side: Option<SideStream>,
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
        let PartRows { comm, halo, sets, .. } = part;
        let prepared = || {
            let device = group.device(comm.rank());
            let places = |set: &RowSet<T>| match set.consecutive() {
                Some(_) => Ok(None),
                None => RowPlaces::new(&device, &set.rows).map(Some),
            };
            let (stream, memory) = (Stream::new(&device)?, Mutex::default());
            let both = overlaps(&device, sets[0].op.nnz()) && !halo.neighbours().is_empty();
            let side = both.then(|| SideStream::new(&device)).transpose()?;
            let places = [places(sets[0])?, places(sets[1])?];
            Ok(Self { group: group.clone(), stream, side, places, memory, device })
        };
        let own = agree(comm, prepared())?;
        own.with_memory(part, 1, |_| Ok(()))?;
        Ok(own)
    }

    /// Returns an error if a rank has failed, or if a GPU has waited for another one beyond the
    /// time limit.
    pub(crate) fn check(&self, comm: &dyn Communicator) -> Result<(), Error> {
        self.group.check().or_else(|error| comm.check().and(Err(error)))
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
        let inbox = inbox.and_then(|inbox| Ok((inbox.places()?, inbox)));
        let ([elements, flags], inbox) = agree(comm, inbox)?;
        // The elements of each rank in the inbox.
        let received = |from: usize| {
            let found = halo.receives.iter().find(|receive| receive.0 == from);
            found.map_or(0..0, |(_, range)| {
                let behind = if range.start < halo.own.end { 0 } else { halo.own.len() };
                range.start - behind..range.end - behind
            })
        };
        // Their place, and the number of the flag of each rank.
        let mut ranks = vec![[0; 2]; comm.size()];
        for &rank in &neighbours {
            ranks[rank][0] = (received(rank).start * count) as u64;
        }
        (0u64..).zip(&neighbours).for_each(|(flag, &rank)| ranks[rank][1] = flag);
        // Places of the elements and of the flags, half the inbox, and what each rank uses.
        let mut own = [elements, flags].concat();
        own.push(half as u64);
        own.extend(ranks.into_iter().flatten());
        let all = gather_words(comm, &own)?;
        let sends = |to: usize| halo.sends.iter().find(|send| send.0 == to);
        let of = |&to: &usize| {
            let ([elements, flags], rest) = addresses(&self.group, to, &all[to])?;
            let [place, flag] = [rest[1 + 2 * rank], rest[2 + 2 * rank]];
            Ok(Neighbour {
                rank: to,
                received: received(to),
                elements: sends(to).map_or_else(Vec::new, |send| send.1.clone()),
                place: elements + place * size_of::<T>() as u64,
                half: rest[0],
                flag: flags + flag * size_of::<u32>() as u64,
            })
        };
        let to: Result<Vec<Neighbour>, Error> = neighbours.iter().map(of).collect();
        let to = agree(comm, to)?;
        let own = halo.columns[halo.own.clone()].iter();
        let used = UsedElements {
            own: own.map(|&column| column - first).collect(),
            own_place: halo.own.start,
            places: halo.places(),
            len: halo.width(),
        };
        // SAFETY: the ranks have just made these inboxes, with room for what they receive.
        let exchange = unsafe { PeerExchange::new(inbox, &to, used, count) };
        let exchange = agree(comm, exchange)?;
        agree(comm, exchange.connect().map(|()| exchange))
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

    /// Enqueues a product: sends elements, receives elements, multiplies boundary rows, and beside
    /// that the interior rows.
    fn enqueue(
        &self,
        part: PartRows<'_, T>,
        memory: &mut GpuMemory<T>,
        stream: &Stream,
        count: usize,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        part.comm.check()?;
        let GpuMemory { exchange, used, products: [interior, boundary], .. } = memory;
        let [of_interior, of_boundary] = &self.places;
        let y = RefCell::new(y);
        let mut multiply_interior = || {
            let (y, places) = (&mut *y.borrow_mut(), of_interior.as_ref());
            part.sets[0].enqueue(stream, count, x, y, interior, places)
        };
        let mut finish = |stream: &Stream| {
            exchange.receive(stream, x, used, self.side.is_some())?;
            let (y, places) = (&mut *y.borrow_mut(), of_boundary.as_ref());
            part.sets[1].enqueue(stream, count, used, y, boundary, places)
        };
        match &self.side {
            Some(side) => side.run(
                stream,
                |side| exchange.send(side, x).and_then(|()| finish(side)),
                multiply_interior,
            ),
            None => {
                exchange.send(stream, x)?;
                multiply_interior()?;
                finish(stream)
            }
        }
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
            self.check(part.comm)?;
            on_y.copy_to(y)?;
            memory.vectors = Some([on_x, on_y]);
            Ok(())
        })
    }
}

/// Addresses in this process of the two places at the front of the words of rank `rank`, and the
/// other words.
pub(crate) fn addresses<'a>(
    group: &PeerGroup,
    rank: usize,
    words: &'a [u64],
) -> Result<([u64; 2], &'a [u64]), Error> {
    let (places, rest) = words.split_at(2 * PLACE_WORDS);
    let (places, _) = places.as_chunks::<PLACE_WORDS>();
    Ok(([group.address(rank, places[0])?, group.address(rank, places[1])?], rest))
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
