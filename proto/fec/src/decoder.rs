//! The decoder at the receiver.

use crate::field::{Kernel, coefficient, invert};
use crate::ring::{NO_GROUP, Ring, Where};
use crate::symbol::{HeadBlock, Sum};
use crate::{BODY_MAX, Body, HEAD_MAX, Parity, ParityId, ROWS_MAX};

/// No buffer.
const NO_BUFFER: u16 = u16::MAX;

/// The caller's handle of a received datagram; cheap to hold, such as a reference to a pooled
/// frame.
pub trait Symbol {
    /// Writes the head that the sender passed to its encoder, and returns its length.
    fn head(&self, out: &mut [u8; HEAD_MAX]) -> usize;

    /// The body.
    fn body(&self) -> Body<'_>;
}

/// A recovered datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovered<'a> {
    /// Its number.
    pub number: u64,
    /// The head that the sender passed to its encoder.
    pub head: &'a [u8],
    /// The body.
    pub body: Body<'a>,
}

/// Reason to refuse a parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Truncated, or with values that no encoder sends.
    #[error("malformed parity")]
    Malformed,
    /// Its group is below the decoder's reach.
    #[error("parity of a group that is forgotten")]
    Old,
    /// Its group is above the decoder's reach, or nothing has arrived yet.
    #[error("parity of a group far ahead of what arrived")]
    Ahead,
    /// Some of its group's numbers belong to another group.
    #[error("parity of a group that overlaps another")]
    Overlapping,
    /// It contradicts another parity, or a received member, of its group.
    #[error("parity that contradicts its group")]
    Inconsistent,
}

/// Counters of a decoder.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// DATA recovered.
    pub recovered: u64,
    /// Parities of groups without missing members.
    pub redundant: u64,
    /// Duplicate parities.
    pub repeated: u64,
    /// Groups abandoned with missing members: too many losses, or evicted as the oldest when memory
    /// ran out.
    pub given_up: u64,
    /// DATA below the decoder's reach.
    pub late: u64,
    /// DATA that had already arrived or been recovered.
    pub duplicates: u64,
    /// Parities refused as [`Refusal::Malformed`].
    pub malformed: u64,
    /// Parities refused as [`Refusal::Old`].
    pub old: u64,
    /// Parities refused as [`Refusal::Ahead`].
    pub ahead: u64,
    /// Parities refused as [`Refusal::Overlapping`].
    pub overlapping: u64,
    /// Parities refused, and groups abandoned, as [`Refusal::Inconsistent`].
    pub inconsistent: u64,
}

/// Bounds of a decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecoderConfig {
    /// Numbers below the highest for which repair is possible, 64 to 2²⁰, rounded up to a power of
    /// two. Twice the peer's longest block suits every path; the maximum block is 8192. Each number
    /// costs 2 slots of about 40 bytes and a handle.
    pub reach: usize,
    /// Numbers below the highest for which datagrams are held while no parity arrives, up to
    /// `reach`. When the peer starts to send parity, or blocks more than four times as long as
    /// before, losses of the first block that are further from its parity than this are not
    /// repaired. Each number costs a held datagram on a path without parity.
    pub quiet_reach: usize,
    /// Maximum bytes of bodies to which held handles refer; a virtual body counts with its length.
    /// Beyond it the oldest are released. Must cover a block.
    pub held_bytes_max: usize,
    /// Maximum stored parities, 8 to 65,000, of groups with missing members. Each takes up to the
    /// longest body.
    pub parities_max: usize,
}

impl Default for DecoderConfig {
    /// For blocks of 8192 numbers of 4 KiB: up to 64 MiB referred to, 4 MiB of these without
    /// parity, and 4 MiB of parity.
    fn default() -> Self {
        DecoderConfig {
            reach: 16_384,
            quiet_reach: 1024,
            held_bytes_max: 64 << 20,
            parities_max: 1024,
        }
    }
}

/// Recovers lost DATA of one path from parity and received DATA.
///
/// Call [`on_data`](Self::on_data) once for each arriving DATA and [`on_parity`](Self::on_parity)
/// for each parity; both pass recovered datagrams to a closure. `H` is the caller's handle of a
/// datagram.
///
/// The decoder holds datagrams for four of the longest blocks with recent parity, or until their
/// group is complete, within its configured bounds. It allocates nothing once parities have reached
/// their length.
pub struct Decoder<H> {
    kernel: Kernel,
    ring: Ring<H>,
    /// Minimum span of held datagrams.
    quiet_span: u64,
    /// Last number of the group of the latest parity.
    last_parity: u64,
    groups: Vec<Group>,
    free_groups: Vec<u16>,
    /// Parities, which are reduced to the sums of missing members.
    buffers: Vec<Sum>,
    free_buffers: Vec<u16>,
    solved: [Sum; ROWS_MAX],
    scratch: HeadBlock,
    counters: Counters,
}

/// A group with missing members.
struct Group {
    id: ParityId,
    /// Missing members.
    missing: usize,
    /// Buffer of each row's parity.
    buffers: [u16; ROWS_MAX],
}

impl Group {
    fn held(&self) -> impl Iterator<Item = (u8, usize)> {
        let rows = (0..).zip(self.buffers);
        rows.filter(|&(_, buffer)| buffer != NO_BUFFER)
            .map(|(row, buffer)| (row, usize::from(buffer)))
    }
}

impl<H: Symbol> Decoder<H> {
    /// Creates a decoder; `config` is clamped to its bounds.
    pub fn new(config: DecoderConfig) -> Self {
        let parities = config.parities_max.clamp(ROWS_MAX, 65_000);
        let reach = config.reach.clamp(64, 1 << 20).next_power_of_two();
        let quiet_span = config.quiet_reach.min(reach) as u64;
        Decoder {
            kernel: Kernel::detect(),
            ring: Ring::new(reach, quiet_span, config.held_bytes_max),
            quiet_span,
            last_parity: 0,
            // Each stored group has a parity.
            groups: Vec::with_capacity(parities),
            free_groups: Vec::with_capacity(parities),
            buffers: (0..parities).map(|_| Sum::new()).collect(),
            free_buffers: (0..parities as u16).rev().collect(),
            solved: [const { Sum::new() }; ROWS_MAX],
            scratch: HeadBlock::new(),
            counters: Counters::default(),
        }
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes of bodies that held handles refer to.
    pub fn held_bytes(&self) -> usize {
        self.ring.held_bytes()
    }

    /// Groups with missing members and parity.
    pub fn groups_under_repair(&self) -> usize {
        self.groups.len() - self.free_groups.len()
    }

    /// Handles an arriving DATA. If its group can now be repaired, passes the lost members to
    /// `recovered`.
    ///
    /// The reach moves up with `number`, so the caller must have checked that the peer could have
    /// sent it.
    pub fn on_data(&mut self, number: u64, held: H, recovered: impl FnMut(Recovered<'_>)) {
        if number == u64::MAX || matches!(self.ring.locate(number), Where::Old) {
            self.counters.late += 1;
            return;
        }
        if number.saturating_sub(self.last_parity) > 2 * self.ring.span {
            self.ring.span = self.quiet_span;
        }
        self.ring.advance(number);
        let slot = self.claim(number);
        if slot.has_come {
            self.counters.duplicates += 1;
            return;
        }
        slot.has_come = true;
        let group = slot.group;
        let body_len = held.body().len();
        if body_len <= BODY_MAX {
            self.ring.hold(number, held, body_len);
        }
        if group != NO_GROUP {
            self.groups[usize::from(group)].missing -= 1;
            self.repair(group, recovered);
        }
    }

    /// Handles an arriving parity. If its group can be repaired, passes the lost members to
    /// `recovered`.
    ///
    /// # Errors
    /// The parity was refused and counted, without further effect.
    pub fn on_parity(
        &mut self,
        parity: &Parity<'_>,
        recovered: impl FnMut(Recovered<'_>),
    ) -> Result<(), Refusal> {
        let outcome = self.place(parity);
        if let Err(refusal) = outcome {
            *match refusal {
                Refusal::Malformed => &mut self.counters.malformed,
                Refusal::Old => &mut self.counters.old,
                Refusal::Ahead => &mut self.counters.ahead,
                Refusal::Overlapping => &mut self.counters.overlapping,
                Refusal::Inconsistent => &mut self.counters.inconsistent,
            } += 1;
        }
        if let Some(group) = outcome? {
            self.repair(group, recovered);
        }
        Ok(())
    }

    /// Adds a parity to its group; `None` if there is nothing more to do.
    fn place(&mut self, parity: &Parity<'_>) -> Result<Option<u16>, Refusal> {
        if !parity.is_sound() {
            return Err(Refusal::Malformed);
        }
        let id = parity.id;
        let last = id.last().ok_or(Refusal::Malformed)?;
        match (self.ring.locate(id.base), self.ring.locate(last)) {
            (Where::Old, _) => return Err(Refusal::Old),
            (_, Where::Ahead) => return Err(Refusal::Ahead),
            _ => {}
        }
        let (known, closed) =
            self.ring.peek(id.base).map_or((NO_GROUP, false), |s| (s.group, s.is_closed));
        if closed {
            self.counters.redundant += 1;
            return Ok(None);
        }
        if known != NO_GROUP {
            return self.place_in(known, parity);
        }
        let taken =
            |number| self.ring.peek(number).is_some_and(|s| s.group != NO_GROUP || s.is_closed);
        if id.members().any(taken) {
            return Err(Refusal::Overlapping);
        }
        let block = u64::from(id.symbols) * u64::from(id.stride);
        let span = self.ring.span;
        self.last_parity = last;
        self.ring.span =
            (4 * block).max(span - span / 64).min(self.ring.reach()).max(self.quiet_span);
        let come = |number: &u64| self.ring.peek(*number).is_some_and(|slot| slot.has_come);
        let missing = id.members().filter(|number| !come(number)).count();
        if missing == 0 {
            self.close_members(id);
            self.counters.redundant += 1;
            return Ok(None);
        }
        let buffer = self.buffer_for(parity, NO_GROUP);
        let group = self.open(id, missing);
        self.groups[usize::from(group)].buffers[usize::from(id.row)] = buffer;
        Ok(Some(group))
    }

    /// Adds a parity to a group with others.
    fn place_in(&mut self, group: u16, parity: &Parity<'_>) -> Result<Option<u16>, Refusal> {
        let known = &self.groups[usize::from(group)];
        if !known.id.is_same_group(&parity.id) {
            return Err(Refusal::Overlapping);
        }
        let row = usize::from(parity.id.row);
        if let Some((_, first)) = known.held().next()
            && !self.buffers[first].is_shaped_like(parity.head, &parity.body)
        {
            return Err(Refusal::Inconsistent);
        }
        if let Some(held) = self.buffers.get(usize::from(known.buffers[row])) {
            if !held.is_equal(parity.head, &parity.body) {
                return Err(Refusal::Inconsistent);
            }
            self.counters.repeated += 1;
            return Ok(None);
        }
        let buffer = self.buffer_for(parity, group);
        self.groups[usize::from(group)].buffers[row] = buffer;
        Ok(Some(group))
    }

    /// Copies the parity into a buffer. If there is none, evicts the oldest group except `but`.
    fn buffer_for(&mut self, parity: &Parity<'_>, but: u16) -> u16 {
        while self.free_buffers.is_empty() {
            let in_use =
                (0..).zip(&self.groups).filter(|(i, group)| group.missing > 0 && *i != but);
            // A group has at most ROWS_MAX buffers, fewer than there are, so another group has
            // some.
            let Some((oldest, _)) = in_use.min_by_key(|(_, group)| group.id.base) else { break };
            self.give_up(oldest);
        }
        let buffer = self.free_buffers.pop().expect("a group that gives way has a buffer");
        let sum = &mut self.buffers[usize::from(buffer)];
        sum.clear();
        sum.add(self.kernel, 1, parity.head, &parity.body);
        buffer
    }

    fn open(&mut self, id: ParityId, missing: usize) -> u16 {
        let group = Group { id, missing, buffers: [NO_BUFFER; ROWS_MAX] };
        let index = match self.free_groups.pop() {
            Some(index) => {
                self.groups[usize::from(index)] = group;
                index
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as u16
            }
        };
        for number in id.members() {
            self.claim(number).group = index;
        }
        index
    }

    /// Returns the slot of a number within the ring. Abandons a group that still occupied it.
    fn claim(&mut self, number: u64) -> &mut crate::ring::Slot<H> {
        let (broken, _) = self.ring.claim(number);
        if broken != NO_GROUP {
            self.give_up(broken);
        }
        self.ring.claim(number).1
    }

    /// Recovers the group's missing members if possible; then, or if none are missing, ends the
    /// group.
    fn repair(&mut self, index: u16, mut recovered: impl FnMut(Recovered<'_>)) {
        let group = &self.groups[usize::from(index)];
        let id = group.id;
        if group.missing == 0 {
            self.counters.redundant += group.held().count() as u64;
            self.free(index);
            return self.close_members(id);
        }
        // Members that arrived but were released are recomputed like lost ones.
        let (mut erased, mut count) = ([0; ROWS_MAX], 0);
        let rows_held = group.held().count();
        for number in id.members().filter(|&number| self.ring.held(number).is_none()) {
            if count == rows_held {
                return;
            }
            erased[count] = number;
            count += 1;
        }
        let erased = &erased[..count];
        if self.solve(index, erased) {
            for (number, sum) in erased.iter().zip(&self.solved) {
                let (Some(slot), Some((head, body))) =
                    (self.ring.peek_mut(*number), sum.as_symbol())
                else {
                    continue;
                };
                if !slot.has_come {
                    slot.has_come = true;
                    self.counters.recovered += 1;
                    recovered(Recovered { number: *number, head, body });
                }
            }
        } else {
            self.counters.inconsistent += 1;
        }
        self.free(index);
        self.close_members(id);
    }

    /// Solves for the `erased` members with as many parities; `false` if the parities are
    /// inconsistent.
    fn solve(&mut self, index: u16, erased: &[u64]) -> bool {
        let group = &self.groups[usize::from(index)];
        let (mut rows, mut matrix) = ([(0, 0); ROWS_MAX], [[0; ROWS_MAX]; ROWS_MAX]);
        for ((r, line), held) in
            rows.iter_mut().zip(&mut matrix).zip(group.held()).take(erased.len())
        {
            *r = held;
            for (cell, &number) in line.iter_mut().zip(erased) {
                *cell = coefficient(held.0, number);
            }
        }
        let rows = &rows[..erased.len()];
        for number in group.id.members() {
            let Some(symbol) = self.ring.held(number) else { continue };
            let head_len = symbol.head(self.scratch.room());
            let body = symbol.body();
            let fits = self.scratch.fill(head_len, &body)
                && self.buffers[rows[0].1].can_contain(self.scratch.as_bytes(), &body);
            if !fits {
                return false;
            }
            for &(row, buffer) in rows {
                let factor = coefficient(row, number);
                self.buffers[buffer].add(self.kernel, factor, self.scratch.as_bytes(), &body);
            }
        }
        let Some(inverse) = invert(matrix, erased.len()) else { return false };
        for (solved, factors) in self.solved.iter_mut().zip(&inverse).take(erased.len()) {
            solved.clear();
            for (&factor, &(_, buffer)) in factors.iter().zip(rows) {
                solved.add_sum(self.kernel, factor, &self.buffers[buffer]);
            }
        }
        self.solved[..erased.len()].iter().all(|sum| sum.as_symbol().is_some())
    }

    fn give_up(&mut self, index: u16) {
        self.counters.given_up += 1;
        for number in self.groups[usize::from(index)].id.members() {
            if let Some(slot) = self.ring.peek_mut(number) {
                slot.group = NO_GROUP;
            }
        }
        self.free(index);
    }

    fn free(&mut self, index: u16) {
        let group = &mut self.groups[usize::from(index)];
        group.missing = 0;
        for buffer in &mut group.buffers {
            if *buffer != NO_BUFFER {
                self.free_buffers.push(std::mem::replace(buffer, NO_BUFFER));
            }
        }
        self.free_groups.push(index);
    }

    fn close_members(&mut self, id: ParityId) {
        for number in id.members() {
            self.ring.release(number);
            let slot = self.claim(number);
            slot.is_closed = true;
            slot.group = NO_GROUP;
        }
    }
}
