//! End-to-end credits: how many messages the responder accepts.

use longhaul_wire::{Syndrome, credit_code, credits};

/// Messages that a responder has completed, and its credits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credits {
    /// Messages that the responder is known to have completed.
    messages: u64,
    /// Message count up to which its credits reach; `None`: unlimited.
    limit: Option<u64>,
}

impl Credits {
    /// For a responder that has completed `messages` messages.
    pub(crate) fn after(messages: u64) -> Self {
        Credits { messages, limit: None }
    }

    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// Notes that the responder has completed `messages` messages.
    pub(crate) fn raise(&mut self, messages: u64) {
        self.messages = self.messages.max(messages);
    }

    /// Takes the syndrome of the responder's latest ACK. Returns `true` if it changes a limit, so
    /// that a requester that waits for credits must be told.
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

    /// Messages that may follow the first `messages`; `None`: unlimited.
    pub(crate) fn left(&self, messages: u64) -> Option<u32> {
        let left = self.limit?.saturating_sub(messages);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Syndrome of an ACK of `messages` messages, which grants no more credits than the responder
    /// did.
    #[inline]
    pub(crate) fn syndrome(&self, messages: u64) -> Syndrome {
        match self.left(messages) {
            None => Syndrome::ACK_UNLIMITED,
            Some(left) => Syndrome::Ack { credit_code: credit_code(left) },
        }
    }
}
