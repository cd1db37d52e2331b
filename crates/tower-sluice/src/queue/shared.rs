//! What everything built from one layer value shares.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;
use tower_sluice_backoff::random_seed;

use super::class::Class;
use super::running::RunningSince;
use super::slots::{ClassKey, Slots};
use super::typical::Typical;
use crate::error::ConfigError;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) slots: Slots,
    pub(super) running: RunningSince,
    pub(super) typical: Typical,
    seed: AtomicU64,
    name: RwLock<Arc<str>>,
    classes: RwLock<Vec<Arc<Class>>>,
    /// Never sends: what follows the queue learns from it that the queue is gone.
    alive: watch::Sender<()>,
}

impl Shared {
    pub(super) fn new(slots: Slots) -> Self {
        Self {
            slots,
            running: RunningSince::default(),
            typical: Typical::default(),
            seed: AtomicU64::new(random_seed()),
            name: RwLock::new(Arc::from("")),
            classes: RwLock::default(),
            alive: watch::Sender::default(),
        }
    }

    pub(super) fn alive(&self) -> watch::Receiver<()> {
        self.alive.subscribe()
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed.load(Ordering::Relaxed)
    }

    pub(super) fn set_seed(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
    }

    /// Empty where none was given.
    pub(super) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_name(&self, name: &str) {
        *self.name.write().unwrap_or_else(PoisonError::into_inner) = Arc::from(name);
    }

    /// The class of this name, if there is one.
    pub(super) fn find_class(&self, name: &str) -> Option<Arc<Class>> {
        let classes = self.classes.read().unwrap_or_else(PoisonError::into_inner);
        classes.iter().find(|class| &*class.name == name).cloned()
    }

    /// The class of this name, made if there is none.
    pub(super) fn class(&self, name: &str) -> Result<Arc<Class>, ConfigError> {
        let mut classes = self.classes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(class) = classes.iter().find(|class| &*class.name == name) {
            return Ok(Arc::clone(class));
        }
        let key = self
            .slots
            .add_class()
            .ok_or_else(|| ConfigError::new("class", format!("{name:?}"), "one of at most 65535"))?;
        let class = Arc::new(Class::new(Arc::from(name), key));
        classes.push(Arc::clone(&class));
        Ok(class)
    }

    pub(super) fn class_of(&self, key: ClassKey) -> Option<Arc<Class>> {
        let classes = self.classes.read().unwrap_or_else(PoisonError::into_inner);
        // Keys are given in order, from 1 on.
        classes.get(usize::from(key).checked_sub(1)?).cloned()
    }
}
