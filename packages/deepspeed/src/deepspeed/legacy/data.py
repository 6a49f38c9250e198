"""Where the names of the data library are found under their old import paths."""

from __future__ import annotations

_PIPELINE = "deepspeed.runtime.data_pipeline"
_SAMPLING = f"{_PIPELINE}.data_sampling"
_ROUTING = f"{_PIPELINE}.data_routing"

_INTERNAL = "!a step inside the old analyzer; use ds_data.DistributedDataAnalyzer, which gathers"

NAMES: dict[str, dict[str, str]] = {
    "deepspeed.runtime.progressive_layer_drop": {
        "ProgressiveLayerDrop": "ds_data:ProgressiveLayerDrop",
    },
    f"{_PIPELINE}.curriculum_scheduler": {
        "CurriculumScheduler": "ds_data:CurriculumScheduler",
    },
    f"{_SAMPLING}.data_sampler": {
        "DeepSpeedDataSampler": "deepspeed.adapters.data:DeepSpeedDataSampler",
    },
    f"{_SAMPLING}.data_analyzer": {
        "DataAnalyzer": "deepspeed.adapters.data_analyzers:DataAnalyzer",
        "DistributedDataAnalyzer": "deepspeed.adapters.data_analyzers:DistributedDataAnalyzer",
        "Dist": _INTERNAL,
        "test_compare_both_data_analyzers": "!a test; both analyzers write the same bytes",
    },
    f"{_SAMPLING}.indexed_dataset": {
        "MMapIndexedDataset": "ds_data:MMapIndexedDataset",
        "MMapIndexedDatasetBuilder": "ds_data:MMapIndexedDatasetBuilder",
        "IndexedDataset": "ds_data.indexed_lists:IndexedDataset",
        "IndexedCachedDataset": "ds_data.indexed_lists:IndexedCachedDataset",
        "IndexedDatasetBuilder": "ds_data.indexed_lists:IndexedDatasetBuilder",
        "best_fitting_dtype": "ds_data:best_dtype",
        **{
            name: f"deepspeed.adapters.data_indexed:{name}"
            for name in (
                "code",
                "create_doc_idx",
                "data_file_path",
                "dataset_exists",
                "exscan_from_cumsum_",
                "get_available_dataset_impl",
                "get_pointers_with_total",
                "index_file_path",
                "infer_dataset_impl",
                "make_builder",
                "make_dataset",
                "read_longs",
                "write_longs",
            )
        },
    },
    f"{_SAMPLING}.variable_batch_size_and_lr": {
        "VariableBatchSizeLR": "deepspeed.adapters.data:VariableBatchSizeLR",
        "VariableBatchLR": "ds_data:VariableBatchLR",
        "batch_by_seqlens": "ds_data:batch_by_seqlens",
        "scale_lr": "ds_data:scale_lr",
        "dataloader_for_variable_batch_size": (
            "deepspeed.adapters.data:dataloader_for_variable_batch_size"
        ),
        "lr_scheduler_for_variable_batch_size": (
            "deepspeed.adapters.data:lr_scheduler_for_variable_batch_size"
        ),
        "get_dataloader_and_lr_scheduler_for_variable_batch_size": (
            "ds_data:get_dataloader_and_lr_scheduler_for_variable_batch_size"
        ),
        "get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed": (
            "deepspeed.adapters.data:"
            "get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed"
        ),
    },
    f"{_ROUTING}.basic_layer": {
        "RandomLayerTokenDrop": "ds_data:RandomLayerTokenDrop",
    },
    f"{_ROUTING}.helper": {
        "convert_to_random_ltd": "ds_data:convert_to_random_ltd",
        "remove_random_ltd_state_dict": "ds_data:remove_random_ltd_state_dict",
        "save_without_random_ltd": "ds_data:save_without_random_ltd",
    },
    f"{_ROUTING}.scheduler": {
        "RandomLTDScheduler": "ds_data:RandomLTDScheduler",
        "BaseScheduler": "!derive from RandomLTDScheduler and override get_value",
    },
}
