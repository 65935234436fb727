//! An I/O queue of a host over its connection.

use super::pair::{Pair, Response};
use super::{Association, AssociationError, Fate, is_alive};
use longhaul_nvme::QueueRequest;
use longhaul_nvme::host::{Answer, IoQueue, Operation};
use std::sync::Arc;
use std::time::Duration;

/// Time for the peer to confirm the end of a connection.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Longest sleep while operations are outstanding.
const SLEEP: Duration = Duration::from_millis(100);

/// An I/O queue, with a context of type `T` for each outstanding operation.
pub struct Queue<T> {
    /// The association's.
    fate: Arc<Fate>,
    io: IoQueue<T>,
    pair: Pair,
    responses: Vec<Response>,
}

impl<T> Queue<T> {
    pub(super) fn connect(
        association: &Association,
        number: u16,
        depth: u16,
        bytes: u32,
    ) -> Result<Self, AssociationError> {
        let Association { device, pd, settings, progress, fate, .. } = association;
        let controller = progress.controller;
        let request = QueueRequest { queue: number, receives: depth + 1, sends: depth, controller };
        // Connect needs 1024 bytes.
        let data_len = bytes.max(longhaul_nvme::CONNECT_DATA_LEN as u32).next_multiple_of(4096);
        // The target has answered on the admin queue.
        let within = match settings.keep_alive {
            Duration::ZERO => settings.connect_within,
            limit => limit.min(settings.connect_within),
        };
        let pair = Pair::connect(device, pd, settings, &request, depth, data_len, within)?;
        let in_capsule = progress.data.as_ref().map_or(0, |data| data.in_capsule);
        let io = IoQueue::new(number, depth, in_capsule);
        let mut queue = Queue { fate: Arc::clone(fate), io, pair, responses: Vec::new() };
        let connect = {
            let pair = &queue.pair;
            queue.io.connect(&settings.identity, controller, |slot| pair.buffer(slot))
        };
        if let Some(connect) = connect {
            queue.pair.send(&connect);
        }
        let end = std::time::Instant::now() + within;
        while !queue.io.is_ready() {
            queue.wait(|_, _| {})?;
            if !queue.io.is_ready() && std::time::Instant::now() > end {
                let cause = "no answer to Connect".into();
                return Err(AssociationError::Lost { queue: number, cause });
            }
        }
        Ok(queue)
    }

    /// The slot that the next operation occupies; `None` if all are occupied.
    #[must_use]
    pub fn next_slot(&self) -> Option<u16> {
        self.io.next_slot()
    }

    /// Number of outstanding operations.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.io.outstanding()
    }

    /// Copies data to write to a slot that is free.
    pub fn write(&self, slot: u16, from: &[u8]) {
        self.pair.write(slot, from);
    }

    /// Copies read data from the slot of an answer, until that slot is occupied again.
    pub fn read(&self, slot: u16, to: &mut [u8]) {
        self.pair.read(slot, to);
    }

    /// Starts an operation in [`Queue::next_slot`], at the next [`Queue::wait`]. `false` if no slot
    /// is free.
    pub fn submit(&mut self, operation: &Operation, context: T) -> bool {
        let pair = &self.pair;
        let submitted = self.io.submit(operation, context, |slot| pair.buffer(slot));
        let Ok(submission) = submitted else { return false };
        self.pair.send(&submission);
        true
    }

    /// Passes completed operations to `take`; waits for some. It busy-polls first, and then sleeps
    /// for at most 100 ms.
    ///
    /// # Errors
    /// If the connection or the association is lost, or the controller violates the protocol.
    pub fn wait(&mut self, mut take: impl FnMut(&Self, Answer<T>)) -> Result<(), AssociationError> {
        is_alive(&self.fate)?;
        let mut responses = std::mem::take(&mut self.responses);
        self.pair.responses(SLEEP, &mut responses)?;
        for response in responses.drain(..) {
            if let Some(answer) = self.io.completed(response.bytes())? {
                take(self, answer);
            }
        }
        self.responses = responses;
        Ok(())
    }

    /// Ends the connection.
    pub fn end(self) {
        self.pair.disconnect(END_WITHIN);
    }
}
