//! End-to-end credits: how many messages the responder takes.

use longhaul_wire::{Syndrome, credit_code, credits};

/// Messages that a responder has completed, and that it takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credits {
    /// Messages that the responder is known to have completed.
    messages: u64,
    /// Message count up to which its credits reach; `None`: no limit.
    limit: Option<u64>,
}

impl Credits {
    /// Of a responder that has completed so many messages.
    pub(crate) fn after(messages: u64) -> Self {
        Credits { messages, limit: None }
    }

    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// The responder has completed so many messages.
    pub(crate) fn raise(&mut self, messages: u64) {
        self.messages = self.messages.max(messages);
    }

    /// The latest ACK of the responder has this syndrome. True if a requester that waits for
    /// credits has to hear of it.
    pub(crate) fn note(&mut self, syndrome: Syndrome) -> bool {
        let Syndrome::Ack { credit_code } = syndrome else { return false };
        let limit = credits(credit_code).map(|credits| self.messages + u64::from(credits));
        if limit <= self.limit && limit.is_none() == self.limit.is_none() {
            return false;
        }
        let had_limit = self.limit.is_some();
        self.limit = limit;
        had_limit
    }

    /// Messages that may follow the `messages`th; `None`: no limit.
    pub(crate) fn left(&self, messages: u64) -> Option<u32> {
        let left = self.limit?.saturating_sub(messages);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// An ACK of so many messages, which promises no more than the responder did.
    #[inline]
    pub(crate) fn syndrome(&self, messages: u64) -> Syndrome {
        match self.left(messages) {
            None => Syndrome::ACK_UNLIMITED,
            Some(left) => Syndrome::Ack { credit_code: credit_code(left) },
        }
    }
}
