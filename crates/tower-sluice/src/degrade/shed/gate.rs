//! Which requests are taken on, and the count of both kinds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ConfigError;
use crate::reject::{Admit, Rejection};

/// Says of a request whether it is taken on.
pub trait Gate<Req> {
    /// `Ok` to take the request on, else the answer to its caller.
    fn admit(&self, request: &Req) -> Result<(), Rejection>;
}

/// What became of the requests of one class since its layer was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassStats {
    /// The class, as it prints with `Debug`, a string without its quotes; `all` where there are no classes.
    pub class: Arc<str>,
    /// Requests that were taken on.
    pub admitted: u64,
    /// Requests that were turned away.
    pub shed: u64,
}

/// One class of requests: its gate, and its counters.
#[derive(Clone)]
pub struct Class {
    shared: Arc<Shared>,
}

struct Shared {
    name: Arc<str>,
    gate: Box<dyn Admit + Send + Sync>,
    admitted: AtomicU64,
    shed: AtomicU64,
}

impl Class {
    pub(super) fn new(name: &str, gate: impl Admit + Send + Sync + 'static) -> Self {
        let shared = Shared {
            name: Arc::from(name),
            gate: Box::new(gate),
            admitted: AtomicU64::new(0),
            shed: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(super) fn stats(&self) -> ClassStats {
        let Shared { name, admitted, shed, .. } = &*self.shared;
        ClassStats {
            class: Arc::clone(name),
            admitted: admitted.load(Ordering::Relaxed),
            shed: shed.load(Ordering::Relaxed),
        }
    }

    fn admit(&self) -> Result<(), Rejection> {
        let Shared { name, gate, admitted, shed } = &*self.shared;
        let answer = gate.admit();
        match &answer {
            Ok(()) => admitted.fetch_add(1, Ordering::Relaxed),
            Err(rejection) => {
                tracing::debug!(class = &**name, %rejection, "request shed");
                shed.fetch_add(1, Ordering::Relaxed)
            }
        };
        answer
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Class").field(&self.stats()).finish()
    }
}

/// Every request is of the same class.
impl<Req> Gate<Req> for Class {
    fn admit(&self, _: &Req) -> Result<(), Rejection> {
        Self::admit(self)
    }
}

/// Requests are told apart by a closure.
#[derive(Clone)]
pub struct ByClass<F, K> {
    class_of: F,
    /// Few, so a list is as fast as any map.
    classes: Vec<(K, Class)>,
}

impl<F, K: PartialEq + fmt::Debug> ByClass<F, K> {
    pub(super) fn new(class_of: F) -> Self {
        Self { class_of, classes: Vec::new() }
    }

    pub(super) fn add(
        &mut self,
        class: K,
        gate: impl Admit + Send + Sync + 'static,
    ) -> Result<(), ConfigError> {
        let name = format!("{class:?}");
        if self.classes.iter().any(|(other, _)| *other == class) {
            return Err(ConfigError::new("class", name, "given a gate only once"));
        }
        self.classes.push((class, Class::new(name.trim_matches('"'), gate)));
        Ok(())
    }

    pub(super) fn stats(&self) -> Vec<ClassStats> {
        self.classes.iter().map(|(_, class)| class.stats()).collect()
    }
}

impl<F, K> fmt::Debug for ByClass<F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.classes.iter().map(|(_, class)| class)).finish()
    }
}

/// A class without a gate is always taken on.
impl<F, K, Req> Gate<Req> for ByClass<F, K>
where
    F: Fn(&Req) -> K,
    K: PartialEq,
{
    fn admit(&self, request: &Req) -> Result<(), Rejection> {
        let class = (self.class_of)(request);
        self.classes.iter().find(|(other, _)| *other == class).map_or(Ok(()), |(_, gate)| gate.admit())
    }
}
