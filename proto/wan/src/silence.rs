//! Measures how long a path has not answered, excluding the time in which an answer could not be
//! heard.

use crate::Config;
use longhaul_units::{Duration, Instant};

/// Delay of a deadline that shows that this box was held up: answers may lie unread.
pub(crate) const HELD_UP: Duration = Duration::from_ms(2);
/// Silence, in multiples of [`Config::path_out_after`], that ends a path even if nothing shows that
/// the far box runs. No hold-up of either box extends it.
const FAR_SILENT: u64 = 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// Start of the wait for an answer, no earlier than the last answer.
    waits_since: Option<Instant>,
    /// Time of the last answer to a transmission on this path.
    heard_at: Instant,
    /// Time at which a box resumed after it was held up; the wait restarts there.
    resumed_at: Option<Instant>,
}

impl Silence {
    pub(crate) fn new(now: Instant) -> Self {
        Silence { waits_since: None, heard_at: now, resumed_at: None }
    }

    /// Notes a transmission that will be answered.
    #[inline]
    pub(crate) fn wait(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// True while no answer is due.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits_since.is_none()
    }

    /// Notes an answer; `waits`: more are outstanding.
    #[inline]
    pub(crate) fn end(&mut self, now: Instant, waits: bool) {
        self.heard_at = now;
        self.resumed_at = None;
        self.waits_since = self.waits_since.filter(|_| waits).map(|_| now);
    }

    /// Stops waiting: the path is down.
    pub(crate) fn give_up(&mut self) {
        self.waits_since = None;
        self.resumed_at = None;
    }

    /// Time of the last answer.
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Latest time that restarts the wait: the last answer, or the end of a hold-up.
    pub(crate) fn waits_anew_from(&self) -> Instant {
        self.resumed_at.unwrap_or(self.heard_at).max(self.heard_at)
    }

    /// Start of the current silence.
    pub(crate) fn since(&self) -> Option<Instant> {
        Some(self.waits_since?.max(self.waits_anew_from()))
    }

    /// Restarts the wait because this box or the far box was held up until `now`, unless the
    /// silence is already too long.
    pub(crate) fn excuse(&mut self, now: Instant, config: &Config) {
        let limit = Silence::longest(config);
        if self.waits_since.is_some_and(|since| now.since(since.max(self.heard_at)) <= limit) {
            self.resumed_at = Some(now);
        }
    }

    /// Silence beyond the RTT after which a path is down, whatever the far box does.
    pub(crate) fn longest(config: &Config) -> Duration {
        config.path_out_after.times(FAR_SILENT)
    }

    /// Silence beyond the RTT after which PINGs go out on the path and on the others.
    pub(crate) fn overdue_after(config: &Config) -> Duration {
        config.path_out_after.divided_by(4)
    }
}
