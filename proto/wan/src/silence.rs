//! How long a path has not answered, without the time in which it could not have been heard.

use crate::Config;
use longhaul_units::{Duration, Instant};

/// A deadline met this much late shows that this box was held up: answers may lie unread.
pub(crate) const HELD_UP: Duration = Duration::from_ms(2);
/// Silence that ends a path although nothing shows that the far box runs, in
/// [`Config::path_out_after`]; neither box's hold-ups are excused for longer.
const FAR_SILENT: u64 = 10;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// Start of the wait for an answer, at the earliest the last answer.
    waits_since: Option<Instant>,
    /// When something was last heard that answers what went out here.
    heard_at: Instant,
    /// When a box went on after it had been held up: the wait begins anew there.
    resumed_at: Option<Instant>,
}

impl Silence {
    pub(crate) fn new(now: Instant) -> Self {
        Silence { waits_since: None, heard_at: now, resumed_at: None }
    }

    /// Something goes out that is to be answered.
    #[inline]
    pub(crate) fn wait(&mut self, now: Instant) {
        self.waits_since.get_or_insert(now);
    }

    /// True while no answer is due.
    pub(crate) fn is_idle(&self) -> bool {
        self.waits_since.is_none()
    }

    /// An answer came; `waits`: more are outstanding.
    #[inline]
    pub(crate) fn end(&mut self, now: Instant, waits: bool) {
        self.heard_at = now;
        self.resumed_at = None;
        self.waits_since = self.waits_since.filter(|_| waits).map(|_| now);
    }

    /// Stops waiting: the path is out.
    pub(crate) fn give_up(&mut self) {
        self.waits_since = None;
        self.resumed_at = None;
    }

    /// When an answer last came.
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// The last moment that shows that an answer may still come.
    pub(crate) fn waits_anew_from(&self) -> Instant {
        self.resumed_at.unwrap_or(self.heard_at).max(self.heard_at)
    }

    /// Since when the path has been silent.
    pub(crate) fn since(&self) -> Option<Instant> {
        Some(self.waits_since?.max(self.waits_anew_from()))
    }

    /// This box or the far one was held up until now: the wait begins anew, unless that has been so
    /// for too long.
    pub(crate) fn excuse(&mut self, now: Instant, config: &Config) {
        let limit = Silence::longest(config);
        if self.waits_since.is_some_and(|since| now.since(since.max(self.heard_at)) <= limit) {
            self.resumed_at = Some(now);
        }
    }

    /// Silence beyond the round trip after which a path is out, whatever the far box does.
    pub(crate) fn longest(config: &Config) -> Duration {
        config.path_out_after.times(FAR_SILENT)
    }

    /// Silence beyond the round trip after which the path, and the other ones, are asked.
    pub(crate) fn overdue_after(config: &Config) -> Duration {
        config.path_out_after.divided_by(4)
    }
}
