//! A SEND being received: checks each packet and places it in the receive of its message.

use crate::pieces::scatter_list;
use crate::{Context, Counter, Receive, RecvQueue, Status};
use longhaul_node::Payload;

/// A SEND of which `received` bytes are placed in `into`.
#[derive(Clone, Copy, Debug)]
pub struct IncomingSend {
    /// Bytes placed.
    pub received: u64,
    /// The receive that the message has taken.
    pub into: Receive,
}

/// Reason why a packet of a SEND cannot be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceFault {
    /// The message is longer than its limit.
    LocalLength,
    /// The memory of the receive may not be written to.
    LocalProtection,
}

impl PlaceFault {
    /// Status of the receive's completion.
    pub fn status(self) -> Status {
        match self {
            PlaceFault::LocalLength => Status::LocalLength,
            PlaceFault::LocalProtection => Status::LocalProtection,
        }
    }
}

impl IncomingSend {
    /// A SEND without bytes, which fills `into`.
    #[inline]
    pub fn begin(into: Receive) -> Self {
        IncomingSend { received: 0, into }
    }

    /// Places the next packet. The message may have at most `limit` bytes.
    ///
    /// # Errors
    /// [`PlaceFault`]; the receive stays taken.
    #[inline]
    pub fn place<C: Context>(
        &mut self,
        payload: &Payload<'_>,
        limit: u64,
        queue: &RecvQueue,
        ctx: &mut C,
    ) -> Result<(), PlaceFault> {
        let offset = self.received;
        self.received += payload.len() as u64;
        if self.received > limit {
            ctx.counters().count(Counter::RespLocalLength);
            return Err(PlaceFault::LocalLength);
        }
        scatter_list(ctx, queue.segments(&self.into), offset, payload)
            .map_err(|_| PlaceFault::LocalProtection)
    }
}
