//! What a mode promises when boxes lose their memory: the rows of docs/semantics.md that name a
//! box, for tests in virtual time and in real time.

use crate::Mode;
use thiserror::Error;

/// Boxes that lost their memory while a connection lived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// The box near the requester.
    pub near: bool,
    /// The box near the responder.
    pub far: bool,
}

impl Mode {
    /// Whether completed messages may be missing at the responder.
    pub const fn may_lose(self, lost: Lost) -> bool {
        match self {
            Mode::Early => lost.near || lost.far,
            Mode::Far => lost.far,
            Mode::Tail | Mode::Off => false,
        }
    }
}

/// What was seen of one direction of an RC connection, once nothing is under way any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Messages that the requester meant to send.
    pub messages: usize,
    /// Of these, completed successfully, in order.
    pub completed: usize,
    /// The first message with bytes that the responder lacks.
    pub placed: usize,
    /// Index of the last READ or atomic that completed.
    pub fence: Option<usize>,
    /// Whether either end of the connection has failed.
    pub is_broken: bool,
    /// The failure of the first work request, if the requester failed before the responder.
    pub failure: Option<FirstFailure>,
}

/// The first work request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstFailure {
    /// Whether it has several packets, which a box may acknowledge before the last.
    pub is_long: bool,
    /// Whether the responder is known to have all of it.
    pub has_arrived: bool,
    /// Whether its status is *remote operation error*.
    pub is_remote_operation: bool,
}

/// A promise that was broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Broken {
    /// The mode keeps completed messages.
    #[error("{completed} messages completed, {placed} are there")]
    Lost {
        /// Completed messages.
        completed: usize,
        /// Messages at the responder.
        placed: usize,
    },
    /// A loss must fail a request.
    #[error("{completed} messages completed, {placed} are there, and nobody is told")]
    Silent {
        /// Completed messages.
        completed: usize,
        /// Messages at the responder.
        placed: usize,
    },
    /// A READ or an atomic succeeds behind all that precedes it.
    #[error("fence {fence} completed, {placed} messages are there")]
    Fence {
        /// Index of the READ or atomic.
        fence: usize,
        /// Messages at the responder.
        placed: usize,
    },
    /// The requester's NIC could have sent everything again.
    #[error("failed, and nothing was lost")]
    Needless,
    /// A message that has arrived is not lost.
    #[error("failed, and the responder has the message")]
    Arrived,
    /// Another status than *remote operation error*.
    #[error("the boxes that are back did not say so")]
    Untold,
}

impl Seen {
    /// Compares it with the promises of `mode`. The requester's retries must outlast the absence of
    /// the boxes.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub fn judge(&self, mode: Mode, lost: Lost) -> Result<(), Broken> {
        let Seen { messages, completed, placed, .. } = *self;
        let may_lose = mode.may_lose(lost);
        // A requester without further requests learns nothing.
        let is_silent = completed == messages;
        if completed > placed && !may_lose {
            return Err(Broken::Lost { completed, placed });
        }
        if completed > placed && !self.is_broken && !is_silent {
            return Err(Broken::Silent { completed, placed });
        }
        if let Some(fence) = self.fence.filter(|fence| *fence > placed) {
            return Err(Broken::Fence { fence, placed });
        }
        let Some(failure) = self.failure else { return Ok(()) };
        let may_fail = match mode {
            Mode::Early | Mode::Far => may_lose,
            Mode::Tail => failure.is_long && (lost.near || lost.far),
            Mode::Off => false,
        };
        match failure {
            _ if !may_fail => Err(Broken::Needless),
            FirstFailure { has_arrived: true, .. } => Err(Broken::Arrived),
            FirstFailure { is_remote_operation: false, .. } => Err(Broken::Untold),
            _ => Ok(()),
        }
    }
}
