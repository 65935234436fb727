//! Threads of a pair that hold still while another process takes their ports.
//!
//! A thread that is asked holds still between two turns, once its element owes nothing and its
//! ports hold no frame. Frames wait in the kernel until it continues, or the other process does.

use crate::port::BoxPort;
use longhaul_port::{Handover, NullPort, Port, PortError};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time after which a thread holds still although its ports hold frames, which may then be lost: a
/// port that is always full has frames at every time.
const AT_REST_WITHIN: Duration = Duration::from_millis(20);
/// Maximum time until all threads hold still.
const STILL_WITHIN: Duration = Duration::from_millis(200);
/// Interval at which a thread that does not hold still is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// Why threads do not hold still.
#[derive(Debug, Error)]
pub enum StirringError {
    /// A thread was too slow, or its element owed something: ask again.
    #[error("its threads do not come to rest")]
    NotYet,
    /// A port cannot be handed over.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// The place in which a thread finds what it is asked.
#[derive(Default)]
pub struct Asked(Mutex<Option<Ask>>);

struct Ask {
    at_rest_until: Instant,
    answer: SyncSender<Result<Vec<Handover>, PortError>>,
    verdict: Receiver<()>,
}

/// A thread that holds still until this is dropped.
pub struct Still {
    /// Its ports, by side.
    pub ports: Vec<Handover>,
    verdict: SyncSender<()>,
}

impl Still {
    /// Another process has the ports: the thread continues without any.
    pub fn give_away(self) {
        // The thread waits for it.
        let _ = self.verdict.send(());
    }
}

impl Asked {
    /// Holds the calling thread still, if that is asked and possible now. `owes`: its element has
    /// acknowledged what it has not delivered.
    pub fn attend(&self, owes: bool, ports: &mut [BoxPort]) {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ask) = &*asked else { return };
        let is_late = Instant::now() >= ask.at_rest_until;
        if owes || !(ports.iter_mut().all(Port::is_at_rest) || is_late) {
            return;
        }
        let Some(ask) = asked.take() else { return };
        drop(asked);
        let handovers = ports.iter_mut().map(Port::hand_over).collect();
        if ask.answer.send(handovers).is_err() || ask.verdict.recv().is_err() {
            return;
        }
        for port in ports {
            port.give_away();
            let longest = port.capabilities().frame_bytes_max;
            *port = BoxPort::Gone(NullPort::new("handed over", longest));
        }
    }
}

/// Makes threads hold still: each is the place in which it finds the request, and a function that
/// calls its hook. Returns all of them, or none.
///
/// # Errors
/// [`StirringError`]; all threads continue.
pub fn hold_still(threads: &[(Arc<Asked>, &dyn Fn())]) -> Result<Vec<Still>, StirringError> {
    let start = Instant::now();
    let ask = |(asked, call_hook): &(Arc<Asked>, &dyn Fn())| {
        let (answer, answered) = sync_channel(1);
        let (verdict, decided) = sync_channel(1);
        let at_rest_until = start + AT_REST_WITHIN;
        let ask = Ask { at_rest_until, answer, verdict: decided };
        *asked.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ask);
        call_hook();
        (answered, verdict)
    };
    let asked: Vec<_> = threads.iter().map(ask).collect();
    let mut still = Vec::with_capacity(threads.len());
    let outcome = asked.into_iter().zip(threads).try_for_each(|((answered, verdict), thread)| {
        let ports = loop {
            match answered.recv_timeout(ASK_AGAIN) {
                Ok(ports) => break ports?,
                Err(RecvTimeoutError::Timeout) if start.elapsed() < STILL_WITHIN => (thread.1)(),
                Err(_) => return Err(StirringError::NotYet),
            }
        };
        still.push(Still { ports, verdict });
        Ok(())
    });
    if outcome.is_err() {
        for (asked, _) in threads {
            asked.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
    outcome.map(|()| still)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    fn port() -> BoxPort {
        BoxPort::Gone(NullPort::new("test", 64))
    }

    /// A thread that attends until it must end.
    fn attending<R>(owes: bool, test: impl FnOnce(&[(Arc<Asked>, &dyn Fn())]) -> R) -> R {
        let (asked, must_end) = (Arc::new(Asked::default()), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !must_end.load(Ordering::Acquire) {
                    asked.attend(owes, &mut [port()]);
                    thread::yield_now();
                }
            });
            let done = test(&[(Arc::clone(&asked), &|| ())]);
            must_end.store(true, Ordering::Release);
            done
        })
    }

    #[test]
    fn a_thread_that_owes_continues() {
        let outcome = attending(true, |threads| hold_still(threads).map(drop));
        assert!(matches!(outcome, Err(StirringError::NotYet)), "{outcome:?}");
    }

    #[test]
    fn a_port_that_stays_with_its_process_is_told() {
        let outcome = attending(false, |threads| hold_still(threads).map(drop));
        let refusal = outcome.unwrap_err().to_string();
        assert!(refusal.contains("cannot be handed over"), "{refusal}");
    }
}
